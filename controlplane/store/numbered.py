"""Objects that are shown of numbered rows instead of being stored: their names, and how pages of them are asked for.

Transfers of the ledger and events of the audit log are such rows: written once, numbered in the order of their commits.
A name is made of the time and the number, so it leads back to its row. Next: `controlplane/ledger/statements.py`,
`controlplane/ledger/usage.py` and `controlplane/audit/reading.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from controlplane.clock import format_time
from controlplane.ids import encode_base32
from controlplane.machinery.kind import Document
from controlplane.store.contract import FieldTerm

NEWEST = (1 << 63) - 1
"""Beyond the last number."""
_DIGITS = 26
"""Of a name: 128 bits, five in each."""
_VALUES = {encode_base32(value)[-1]: value for value in range(32)}


def allowed(projects: Collection[str] | None) -> list[str] | None:
    """The projects to which a question is limited, as its argument; None asks about all."""
    return None if projects is None else sorted(projects)


def field_conditions(columns: Mapping[str, str], fields: Sequence[FieldTerm], arguments: list[object]) -> str:
    """The terms of a field selector as SQL over these columns; their values are added to the arguments."""
    conditions = ""
    for term in fields:
        arguments.append(term.value.replace("\0", "\N{REPLACEMENT CHARACTER}"))
        conditions += f" AND {columns[term.path]} {'=' if term.equal else '<>'} ${len(arguments)}::text"
    return conditions


def metadata(name: str, row: Mapping[str, Any]) -> Document:
    """The metadata of what is shown of a row, which never changes."""
    return {
        "name": name,
        "uid": name,
        "resourceVersion": str(row["seq"]),
        "creationTimestamp": format_time(row["created_at"]),
    }


def name_of(prefix: str, row: Mapping[str, Any]) -> str:
    """The name of what is shown of a row: typed and ordered by time, as all uids are."""
    milliseconds = int(row["created_at"].timestamp() * 1_000)
    return f"{prefix}_{encode_base32((milliseconds << 80) | row['seq'])}"


def seq_of(prefix: str, name: str) -> int | None:
    """The number that a name of `name_of` tells, None for another name."""
    kind, _, digits = name.partition("_")
    if kind != prefix or len(digits) != _DIGITS or not set(digits) <= _VALUES.keys():
        return None
    value = 0
    for digit in digits:
        value = value << 5 | _VALUES[digit]
    seq = value & ((1 << 80) - 1)
    return seq if seq < NEWEST else None


async def named(prefix: str, name: str, before: Callable[[int], Awaitable[Sequence[Document]]]) -> Document | None:
    """The object of this name, None when there is none; `before` answers the newest one below a number, if any."""
    seq = seq_of(prefix, name)
    if seq is None:
        return None
    found = await before(seq + 1)
    return found[0] if found and found[0]["metadata"]["name"] == name else None
