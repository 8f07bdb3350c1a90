"""What a write of a Secret does beside its object: seal the values as a version, and never let them into the object.

A create and an update that carry values become a version in the same commit; values equal to the current ones do not.
The object holds only which versions and keys there are. A patch is applied to a copy in which every current key
stands with a marker instead of its value (`editable`), so it can set, keep and remove single keys, although clients
never see values; a replacement that names values names all of them, and one that names none leaves them.
"""

from __future__ import annotations

import copy
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from controlplane.clock import format_time
from controlplane.errors import Cause, invalid
from controlplane.kinds.secret import (
    KEYS_MAX,
    REGISTRY_KEYS,
    SECRET,
    VALUES_BYTES_MAX,
    VERSIONS_SHOWN_MAX,
    take_values,
    values_bytes,
)
from controlplane.machinery.problems import REQUIRED, TOO_LONG, TOO_MANY
from controlplane.secrets.held import NOT_HELD, VERSIONS_KEPT_MAX
from controlplane.secrets.sealing import SecretSealer
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.hooks import PlainHooks, differing_paths

MANIFEST_ANNOTATIONS = ("nodus.dev/last-applied", "kubectl.kubernetes.io/last-applied-configuration")
"""Where `apply` of the public command line and of kubectl keep the whole manifest, values included."""
CREATED_BY = "nodus.dev/created-by"

_LATEST = Loader(
    "secret-latest-version",
    """SELECT k.key, o.uid, v.version, v.digest, v.ciphertext FROM unnest($1::text[]) AS k(key)
    JOIN objects o ON o.kind = 'Secret' AND o.org = split_part(k.key, '/', 1)
        AND o.project = split_part(k.key, '/', 2) AND o.name = split_part(k.key, '/', 3)
    JOIN LATERAL (SELECT version, digest, ciphertext FROM secret_versions
        WHERE secret_uid = o.uid ORDER BY version DESC LIMIT 1) v ON true""",
)
_INSERT = """
INSERT INTO secret_versions (secret_uid, version, org, project, name, digest, ciphertext, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
# Values that a worker still holds stay, so that its error texts can be searched for them.
_DROP_OLD = f"DELETE FROM secret_versions WHERE secret_uid = $1 AND version <= $2 AND {NOT_HELD}"  # noqa: S608
_DROP_ALL = f"DELETE FROM secret_versions WHERE secret_uid = $1 AND {NOT_HELD}"  # noqa: S608 - constants

_MARKER = b64encode(secrets.token_bytes(24)).decode()
"""Stands for a value that a patch has left alone; random, so that no value of a user can mean it."""

_Written = dict[str, bytes | None]
"""Values by key as a client wrote them; None for a marker."""


@dataclass(frozen=True, slots=True)
class _Version:
    """The newest version of a Secret at some point of a batch."""

    number: int
    digest: str
    ciphertext: bytes


class SecretHooks(PlainHooks):
    """The hooks of the kind Secret."""

    def __init__(self, sealer: SecretSealer) -> None:
        self._sealer = sealer

    def reads_create(self, key: Key, document: Document) -> Reads:
        return _reads(key)

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        """The object without its values, which become version 1."""
        stored, written = _taken(document)
        values = _merged(written, {})
        return self._sealed(tx, key, stored, values, 0) if values else stored

    def differences(self, tx: Tx, key: Key, stored: Document, proposed: Document) -> list[str]:
        """Type and values decide whether two Secrets are equal."""
        without, written = _taken(proposed)
        found = differing_paths(stored.get("spec"), without.get("spec"), "spec")
        latest = _latest(tx, key, stored["metadata"]["uid"])
        return found if self._are_current(_merged(written, {}), latest) else [*found, "spec.data"]

    def editable(self, document: Document) -> Document:
        """A copy for a patch to change: every current key is there, with a marker for its value."""
        editable = copy.deepcopy(document)
        keys = editable.get("status", {}).get("keys", [])
        editable["spec"] |= {"data": dict.fromkeys(keys, _MARKER), "stringData": dict.fromkeys(keys, _MARKER)}
        return editable

    def reads_update(self, key: Key, document: Document) -> Reads:
        return _reads(key)

    def comparable(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        """A copy with the marker for every value that is the current one, so that setting it again is no change."""
        _, written = _taken(new)
        uid = old["metadata"]["uid"]
        latest = _latest(tx, key, uid)
        if latest is None or not any(value is not None for values in written for value in values.values()):
            return new
        current = self._sealer.open(uid, latest.number, latest.ciphertext)
        spec = dict(new["spec"])
        for field, read in (("data", b64decode), ("stringData", str.encode)):
            if spec.get(field) is not None:
                spec[field] = {
                    name: _MARKER if text != _MARKER and current.get(name) == read(text) else text
                    for name, text in spec[field].items()
                }
        return {**new, "spec": spec}

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        """The new object without its values; a new version when they differ from the current ones."""
        stored, written = _taken(new)
        if not written:
            return stored
        uid = old["metadata"]["uid"]
        latest = _latest(tx, key, uid)
        if _keeps_all(written, old):
            return _as_before(old, stored)
        current = self._sealer.open(uid, latest.number, latest.ciphertext) if latest and _keeps(written) else {}
        values = _merged(written, current)
        _check(key, stored, values)
        if self._are_current(values, latest):
            return _as_before(old, stored)
        return self._sealed(tx, key, stored, values, latest.number if latest else 0)

    def removed(self, tx: Tx, key: Key, document: Document) -> None:
        tx.execute(_DROP_ALL, (document["metadata"]["uid"],))

    def _are_current(self, values: Mapping[str, bytes], latest: _Version | None) -> bool:
        return self._sealer.recognises(values, latest.digest) if latest else not values

    def _sealed(self, tx: Tx, key: Key, document: Document, values: Mapping[str, bytes], previous: int) -> Document:
        """Store `values` as the version after `previous` and note it in a document of our own."""
        uid, number = document["metadata"]["uid"], previous + 1
        version = _Version(number, self._sealer.digest(values), self._sealer.seal(uid, number, values))
        tx.execute(_INSERT, (uid, number, key.org, key.project, key.name, version.digest, version.ciphertext, tx.now))
        if number > VERSIONS_KEPT_MAX:
            tx.execute(_DROP_OLD, (uid, number - VERSIONS_KEPT_MAX))
        # Other mutations of the batch find this one's version here. The uid is new, or its update cannot fail any more.
        tx.scratch(_LATEST.name)[uid] = version
        shown: dict[str, Any] = {"version": number, "createTime": format_time(tx.now), "keys": sorted(values)}
        if number == 1 and CREATED_BY in document["metadata"].get("labels", {}):
            shown["createdBy"] = document["metadata"]["labels"][CREATED_BY]
        status = document.get("status", {})
        versions = [shown, *status.get("versions", [])][:VERSIONS_SHOWN_MAX]
        changes = {"phase": "Ready", "keys": sorted(values), "version": number, "versions": versions}
        return {**document, "status": {**status, **changes}}


def _reads(key: Key) -> Reads:
    return Reads(loads=((_LATEST, f"{key.org}/{key.project}/{key.name}"),))


def _latest(tx: Tx, key: Key, uid: str) -> _Version | None:
    known: _Version | None = tx.scratch(_LATEST.name).get(uid)
    if known is not None:
        return known
    for row in tx.rows(_LATEST, f"{key.org}/{key.project}/{key.name}"):
        if row["uid"] == uid:
            return _Version(row["version"], row["digest"], row["ciphertext"])
    return None


def _as_before(old: Document, stored: Document) -> Document:
    """A document whose values did not change; its spec only looked changed because it named them."""
    if stored["spec"] == old["spec"]:
        stored["metadata"]["generation"] = old["metadata"]["generation"]
    return stored


def _taken(document: Document) -> tuple[Document, list[_Written]]:
    """A copy without any values, and the values of `stringData` and `data`, in this order, as far as it had them."""
    metadata = dict(document["metadata"])
    annotations = metadata.get("annotations", {})
    manifests = {
        name: _without_applied_values(annotations[name]) for name in MANIFEST_ANNOTATIONS if name in annotations
    }
    if manifests:
        metadata["annotations"] = {**annotations, **manifests}
    spec = document["spec"]
    written: list[_Written] = []
    if spec.get("stringData") is not None:
        written.append({key: None if text == _MARKER else text.encode() for key, text in spec["stringData"].items()})
    if spec.get("data") is not None:
        written.append({key: None if text == _MARKER else b64decode(text) for key, text in spec["data"].items()})
    stored = {**document, "metadata": metadata, "spec": dict(spec)}
    take_values(stored)
    return stored, written


def _without_applied_values(manifest: str) -> str:
    """The manifest that `apply` keeps, its values emptied: the keys tell a later `apply` which of them it removed."""
    try:
        applied = orjson.loads(manifest)
    except orjson.JSONDecodeError:
        return ""
    spec = applied.get("spec") if isinstance(applied, dict) else None
    if not isinstance(spec, dict):
        return manifest
    for field in ("data", "stringData"):
        if isinstance(spec.get(field), dict):
            spec[field] = dict.fromkeys(spec[field], "")
    return orjson.dumps(applied).decode()


def _keeps(written: list[_Written]) -> bool:
    return any(value is None for values in written for value in values.values())


def _keeps_all(written: list[_Written], old: Document) -> bool:
    """Whether a patch left every value alone; then nothing needs to be opened."""
    keys = set(old.get("status", {}).get("keys", []))
    return all(values.keys() == keys and not any(value is not None for value in values.values()) for values in written)


def _merged(written: list[_Written], current: Mapping[str, bytes]) -> dict[str, bytes]:
    """The values after a write: new ones win, a marker keeps the current value unless another map dropped the key.

    What a patch is applied to has a marker in both maps; taking a key out of either removes it.
    """
    merged: dict[str, bytes] = {}
    for key in {key: None for values in written for key in values}:
        given = [values[key] for values in written if values.get(key) is not None]
        if given and given[0] is not None:
            merged[key] = given[0]
        elif key in current and all(key in values for values in written):
            merged[key] = current[key]
    return merged


def _check(key: Key, document: Document, values: Mapping[str, bytes]) -> None:
    """Invalid when the merged values break a limit that the patch alone did not."""
    causes: list[Cause] = []
    if len(values) > KEYS_MAX:
        causes.append(Cause("spec.data", f"must have at most {KEYS_MAX} keys", TOO_MANY))
    if values_bytes(values) > VALUES_BYTES_MAX:
        causes.append(Cause("spec.data", f"must be at most {VALUES_BYTES_MAX} bytes in all", TOO_LONG))
    if document["spec"].get("type") == "Registry":
        missing = [name for name in REGISTRY_KEYS if name not in values]
        causes += [
            Cause(f"spec.stringData.{name}", "must be specified for type Registry", REQUIRED) for name in missing
        ]
    if causes:
        raise invalid(SECRET.plural, key.name, causes)
