"""What a worker's environment holds, secrets included, and how they are kept out of its error texts.

Read when a node leases an attempt (`api/node.py`) and never stored: the values exist in the response and in the
worker's process only.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from controlplane.clock import format_time, parse_time
from controlplane.errors import ApiError, Reason, not_found
from controlplane.kinds.secret import SECRET
from controlplane.secrets.held import Version
from controlplane.secrets.redaction import Redact, redactor
from controlplane.secrets.sealing import SecretSealer
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key, Reads, Tx
from controlplane.store.database import Database

USE_NOTED_EVERY = timedelta(minutes=1)
"""`status.lastUsedTime` moves at most this often, so a pool of workers does not write it once each."""

HOLDING_LENGTH_MIN = 8
"""A variable with a shorter value than this is not taken for a Secret's: `true`, `8080` and `eu-1` stand in both."""

SECRETS_PER_PAGE = 100

LATEST = 0
"""Asks for the version that is current now."""

_WANTED = """
SELECT w.name, w.version AS wanted, o.uid, v.version, v.ciphertext
FROM unnest($3::text[], $4::bigint[]) AS w(name, version)
JOIN objects o ON o.kind = 'Secret' AND o.org = $1 AND o.project = $2 AND o.name = w.name
LEFT JOIN LATERAL (SELECT version, ciphertext FROM secret_versions
    WHERE secret_uid = o.uid AND (w.version = 0 OR version = w.version) ORDER BY version DESC LIMIT 1) v ON true
"""
_PRESENT_PAGE = """
SELECT o.name, o.uid, v.version, v.ciphertext FROM objects o
JOIN LATERAL (SELECT version, ciphertext FROM secret_versions
    WHERE secret_uid = o.uid ORDER BY version DESC LIMIT 1) v ON true
WHERE o.kind = 'Secret' AND o.org = $1 AND o.project = $2 AND o.name > $3 ORDER BY o.name LIMIT $4
"""
# A worker has the values it was started with, also those of Secrets that its Function has dropped since.
_ALL_VERSIONS = """
SELECT o.uid, v.version, v.ciphertext FROM objects f
JOIN objects o ON o.kind = 'Secret' AND o.org = f.org AND o.project = f.project AND o.name = ANY($2::text[])
JOIN secret_versions v ON v.secret_uid = o.uid
WHERE f.uid = $1
UNION
SELECT v.secret_uid, v.version, v.ciphertext FROM attempts a
JOIN attempt_secrets held ON held.attempt = a.uid
JOIN secret_versions v ON v.secret_uid = held.secret_uid AND v.version = held.version
WHERE a.function_uid = $1
"""

log = structlog.get_logger(__name__)

_Wanted = tuple[str, int]
"""A Secret's name and the version asked for."""


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """Variables by name, and the Secrets and the versions of them that their values came from."""

    variables: dict[str, str]
    secrets: tuple[Key, ...]
    versions: tuple[Version, ...]


class SecretReader:
    """Opens Secrets for workers."""

    def __init__(self, database: Database, cache: ObjectCache, sealer: SecretSealer) -> None:
        self._database = database
        self._cache = cache
        self._sealer = sealer

    async def environment(self, org: str, project: str, spec: Mapping[str, Any]) -> WorkerEnvironment:
        """The variables that a Function's spec asks for: every key of its Secrets in their order, then its `env`, a
        later one winning.

        Raises NotFound for a Secret, version or key that does not exist, Invalid for a value that cannot be a variable.
        """
        mounts = [(mount["name"], mount.get("version", LATEST)) for mount in spec.get("secrets") or ()]
        entries: Sequence[Mapping[str, Any]] = spec.get("env") or ()
        referenced = [(reference["name"], LATEST) for reference in map(_reference, entries) if reference is not None]
        opened, versions = await self._open(org, project, {*mounts, *referenced})
        variables: dict[str, str] = {}
        for name, version in mounts:
            for key, value in opened[name, version].items():
                variables[key] = _as_variable(name, key, value)
        for entry in entries:
            reference = _reference(entry)
            if reference is None:
                variables[entry["name"]] = entry.get("value", "")
            else:
                name, key = reference["name"], reference["key"]
                variables[entry["name"]] = _as_variable(name, key, _at(opened[name, LATEST], name, key))
        names = dict.fromkeys(name for name, _ in (*mounts, *referenced))
        return WorkerEnvironment(variables, tuple(Key(SECRET.kind, org, project, name) for name in names), versions)

    async def redactor(self, function_uid: str) -> Redact:
        """What takes the values of a Function's Secrets out of a text.

        All versions that are kept count, and all that one of its workers was started with.
        """
        function = self._cache.by_uid(function_uid)
        names = _secret_names(function["spec"]) if function is not None else []
        rows = await self._database.fetch(_ALL_VERSIONS, function_uid, names)
        values: set[str] = set()
        for row in rows:
            opened = self._sealer.open(row["uid"], row["version"], row["ciphertext"])
            values.update(value.decode("utf-8", "replace") for value in opened.values())
        return redactor(values)

    async def holding(self, org: str, project: str, texts: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Which of these texts are present values of the project's Secrets: by text, the Secret's name and the key.

        Texts that are too short to be secret are not looked for; a Secret that cannot be opened holds none.
        """
        wanted = {text.encode(errors="surrogatepass"): text for text in texts if len(text) >= HOLDING_LENGTH_MIN}
        found: dict[str, tuple[str, str]] = {}
        name = ""
        while wanted:
            rows = await self._database.fetch(_PRESENT_PAGE, org, project, name, SECRETS_PER_PAGE)
            for row in rows:
                name = row["name"]
                try:
                    values = self._sealer.open(row["uid"], row["version"], row["ciphertext"])
                except ApiError as error:
                    log.error("a Secret was not compared with variables", told=error.message, about=error.debug)
                    continue
                found.update((wanted[value], (name, key)) for key, value in values.items() if value in wanted)
            if len(rows) < SECRETS_PER_PAGE:
                break
        return found

    async def _open(
        self, org: str, project: str, wanted: Iterable[_Wanted]
    ) -> tuple[dict[_Wanted, dict[str, bytes]], tuple[Version, ...]]:
        """The values of each wanted version, and which versions they are."""
        ordered = sorted(wanted)
        if not ordered:
            return {}, ()
        names, versions = [name for name, _ in ordered], [version for _, version in ordered]
        rows = await self._database.fetch(_WANTED, org, project, names, versions)
        found = {(row["name"], row["wanted"]): row for row in rows}
        opened: dict[_Wanted, dict[str, bytes]] = {}
        for name, version in ordered:
            row = found.get((name, version))
            if row is None:
                raise not_found(SECRET.plural, name)
            if row["version"] is not None:
                opened[name, version] = self._sealer.open(row["uid"], row["version"], row["ciphertext"])
            elif version == LATEST:
                opened[name, version] = {}  # nothing was ever written to it
            else:
                raise _not_found_in(name, f"version {version}")
        held = {(row["uid"], row["version"]) for row in rows if row["version"] is not None}
        return opened, tuple(sorted(held))


class NoteSecretUse:
    """Moves `status.lastUsedTime` of some Secrets to now; those that are gone or were noted lately stay as they are."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys

    def reads(self) -> Reads:
        return Reads(keys=self._keys)

    def apply(self, tx: Tx) -> None:
        for key in self._keys:
            document = tx.get(key)
            if document is not None and _is_due(document, tx.now):
                status = {**document.get("status", {}), "lastUsedTime": format_time(tx.now)}
                tx.put(key, {**document, "status": status})


def _is_due(document: Document, now: datetime) -> bool:
    noted = document.get("status", {}).get("lastUsedTime")
    return noted is None or now - parse_time(noted) >= USE_NOTED_EVERY


def _reference(entry: Mapping[str, Any]) -> Mapping[str, str] | None:
    reference: Mapping[str, str] | None = (entry.get("valueFrom") or {}).get("secretKeyRef")
    return reference


def _secret_names(spec: Mapping[str, Any]) -> list[str]:
    sidecars = (sidecar.get("env") or () for sidecar in spec.get("sidecars") or ())
    references = map(_reference, itertools.chain(spec.get("env") or (), *sidecars))
    names = [mount["name"] for mount in spec.get("secrets") or ()]
    return list(dict.fromkeys([*names, *(reference["name"] for reference in references if reference is not None)]))


def _at(values: Mapping[str, bytes], name: str, key: str) -> bytes:
    if key not in values:
        raise _not_found_in(name, f'key "{key}"')
    return values[key]


def _as_variable(name: str, key: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ApiError(
            Reason.INVALID,
            f'key "{key}" of {SECRET.plural}.nodus.dev "{name}" cannot be an environment variable: '
            "it must be UTF-8 text without NUL",
            subject=(SECRET.plural, name),
            fix="Store it in base64 and decode it in the function.",
        )
    return text


def _not_found_in(name: str, what: str) -> ApiError:
    return ApiError(
        Reason.NOT_FOUND, f'{SECRET.plural}.nodus.dev "{name}" has no {what}', subject=(SECRET.plural, name)
    )
