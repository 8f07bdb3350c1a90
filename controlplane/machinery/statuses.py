"""What clients may write in a status: conditions of their own.

A status says what the server observed, and calls, charges and workers hang on it, so no client may change that. Other
programs may add conditions whose type carries their domain (`example.com/Approved`), to wait for and to select by; the
server keeps them through everything it writes. `controlplane/resources/changing.py` calls this for `/status`.
"""

from __future__ import annotations

from pydantic import Field, ValidationError

from controlplane.clock import format_time, parse_time
from controlplane.errors import Cause, invalid
from controlplane.machinery import problems
from controlplane.machinery.conditions import Conditions
from controlplane.machinery.documents import check_identity, check_type
from controlplane.machinery.kind import Document, Kind
from controlplane.machinery.meta import RESERVED_PREFIX
from controlplane.machinery.model import ApiModel
from controlplane.machinery.validation import causes_of, without_nulls

CLIENT_CONDITIONS_MAX = 16
"""Conditions of clients on one object; they are copied into every version of it."""
TYPE_LENGTH_MAX = 317
"""A name of 63 characters with a DNS prefix of 253; Kubernetes' own limit is 316 and a slash."""
TEXT_LENGTH_MAX = 1_024
"""Kubernetes' own limit of a condition's reason."""
_VALUES = ("True", "False", "Unknown")
_OWN_CONDITIONS_ADVICE = "add conditions whose `type` begins with a domain of yours, such as example.com/Approved"


class _ClientStatus(ApiModel):
    conditions: Conditions = Field(default_factory=list)


def document_for_status(kind: Kind, stored: Document, body: Document) -> Document:
    """`stored` with the client's conditions as `body` has them; everything outside its status is ignored.

    What the server observed stays when it is left out. Raises `Invalid` when `body` changes it, and what the whole
    object raises for another type, name or uid.
    """
    check_type(kind, body)
    check_identity(kind, stored["metadata"], body.get("metadata"))
    status = without_nulls(body.get("status", {}))
    name = stored["metadata"]["name"]
    if not isinstance(status, dict):
        raise invalid(kind.plural, name, [Cause("status", "must be an object", problems.TYPE_INVALID)])
    observed = stored.get("status", {})
    causes = [
        Cause(
            f"status.{field}", f"may not be changed: the server writes it; {_OWN_CONDITIONS_ADVICE}", problems.FORBIDDEN
        )
        for field, value in status.items()
        if field != "conditions" and observed.get(field) != value
    ]
    conditions = _conditions(observed.get("conditions", []), status.get("conditions", []), causes)
    if causes:
        raise invalid(kind.plural, name, causes)
    return {**stored, "status": {**observed, "conditions": conditions}}


def _conditions(observed: list[Document], wanted: object, causes: list[Cause]) -> list[Document]:
    """The server's conditions as they are, then the client's."""
    try:
        given = _ClientStatus.model_validate({"conditions": wanted}).to_wire()["conditions"]
    except ValidationError as error:
        causes += causes_of(error, "status", _ClientStatus)
        return observed
    servers = {condition["type"]: condition for condition in observed if not _is_clients(condition["type"])}
    own: dict[str, Document] = {}
    for index, condition in enumerate(given):
        path, type_ = f"status.conditions[{index}]", condition["type"]
        if not _is_clients(type_):
            if servers.get(type_) != condition:
                told = f"may not be changed: the server writes {type_!r}; {_OWN_CONDITIONS_ADVICE}"
                causes.append(Cause(path, told, problems.FORBIDDEN))
        elif type_ in own:
            causes.append(Cause(f"{path}.type", f'must not repeat "{type_}"', problems.DUPLICATE))
        else:
            own[type_] = _checked(condition, path, causes)
    if len(own) > CLIENT_CONDITIONS_MAX:
        told = f"must have at most {CLIENT_CONDITIONS_MAX} items of clients"
        causes.append(Cause("status.conditions", told, problems.TOO_MANY))
    return [*servers.values(), *own.values()]


def _checked(condition: Document, path: str, causes: list[Cause]) -> Document:
    """The condition with its time in the form of the wire."""
    if condition["status"] not in _VALUES:
        causes.append(Cause(f"{path}.status", 'must be one of "True", "False", "Unknown"', problems.NOT_SUPPORTED))
    for field, length_max in (("type", TYPE_LENGTH_MAX), ("reason", TEXT_LENGTH_MAX), ("message", TEXT_LENGTH_MAX)):
        if len(condition[field]) > length_max:
            causes.append(Cause(f"{path}.{field}", f"must be at most {length_max} characters", problems.TOO_LONG))
    try:
        return {**condition, "lastTransitionTime": format_time(parse_time(condition["lastTransitionTime"]))}
    except ValueError:
        causes.append(Cause(f"{path}.lastTransitionTime", "must be an RFC 3339 time"))
        return condition


def _is_clients(type_: str) -> bool:
    """Whether conditions of this type belong to clients: they carry a domain, and it is not the server's."""
    domain, slash, name = type_.partition("/")
    return bool(domain and slash and name) and not type_.startswith(RESERVED_PREFIX)
