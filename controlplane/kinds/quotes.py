"""The rate that a create was bound to, and what it is worth afterwards.

Whoever creates with the ETag of an estimate (`If-Match`) keeps the rate that it quoted, and a tenth more at most,
whatever prices do until the work is done. The quote is an annotation of the object, under the server's own prefix, so
that no client can write it and everybody can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.machinery.quantities import format_money, parse_money

QUOTED_RATE = "nodus.dev/quoted-rate-usd-per-hour"
_TENTHS_MAX = 11
"""Of the quoted rate: at most 10 % more. Source: API reference, Estimate `validUntil`."""


def quoted(document: Mapping[str, Any], rate_micro_usd_per_hour: int) -> dict[str, Any]:
    """The object, bound to a rate."""
    metadata = document["metadata"]
    annotations = {**metadata.get("annotations", {}), QUOTED_RATE: format_money(rate_micro_usd_per_hour)}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def without_quote(document: Mapping[str, Any]) -> dict[str, Any]:
    """The object, bound to nothing any more."""
    metadata = dict(document["metadata"])
    annotations = {name: value for name, value in metadata.pop("annotations", {}).items() if name != QUOTED_RATE}
    if annotations:
        metadata["annotations"] = annotations
    return {**document, "metadata": metadata}


def bound_as(owner: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The object, bound to the quote of its owner as well: of two quotes the lower one holds."""
    owners, own = quote_of(owner), quote_of(document)
    if owners is None or (own is not None and own <= owners):
        return document
    return quoted(document, owners)


def within_quote(document: Mapping[str, Any] | None, rate_micro_usd_per_hour: int) -> int:
    """The rate at which the object may be charged when the present one is this, in micro-USD an hour."""
    bound = quote_of(document)
    return rate_micro_usd_per_hour if bound is None else min(rate_micro_usd_per_hour, bound * _TENTHS_MAX // 10)


def quote_of(document: Mapping[str, Any] | None) -> int | None:
    """The rate that the object was bound to, in micro-USD an hour; None for most, which are not bound."""
    if document is None:
        return None
    rate = document["metadata"].get("annotations", {}).get(QUOTED_RATE)
    return None if rate is None else parse_money(rate)
