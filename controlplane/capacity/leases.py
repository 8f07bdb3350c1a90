"""What a node is told when it takes an attempt, and what it tells about it.

A lease is everything needed to run one worker: what to run, the variables of its environment with the values of
Secrets, and a token that speaks for this attempt and nothing else. None of it passes through workflows, whose history
stays. The routes are in `api/node.py`, the node's side in `activities/node_api.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import asyncpg

from controlplane import failpoints
from controlplane.capacity.revision import pool_revision
from controlplane.clock import Clock, format_time, parse_time
from controlplane.errors import ApiError, Reason, not_found
from controlplane.identity.tokens import TokenHasher, mint_attempt_token
from controlplane.images.use import CATALOG, use_of
from controlplane.ledger.worker_accounts import STARTED
from controlplane.secrets.environment import NoteSecretUse, SecretReader, WorkerEnvironment
from controlplane.secrets.held import HoldVersions
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer

_ATTEMPT = """
SELECT uid, org, project, function, function_uid, epoch, pool, concurrency, finished_at FROM attempts WHERE uid = $1
"""
_BEFORE = """
SELECT b.uid FROM attempts a JOIN attempts b ON b.function_uid = a.function_uid AND b.slot = a.slot
WHERE a.uid = $1 AND b.epoch < a.epoch ORDER BY b.epoch DESC LIMIT 1
"""
_NOTE_REVISION = "UPDATE attempts SET pool = $2 WHERE uid = $1"
_MESSAGES = {
    "Preparing": "the environment of the worker is being prepared",
    "Starting": "the worker's process runs and loads the function",
    "Draining": "the worker finishes its calls and leaves",
}
"""By the phase a node tells. Readiness is not among them: the first claim proves it, and stamps it."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """One worker to run. It holds secrets: it must not be logged or stored."""

    token: str
    project: str
    function: str
    function_uid: str
    concurrency: int
    spec: Document
    variables: dict[str, str]
    sidecar_variables: list[dict[str, str]]
    """Of each sidecar, in the order of the spec."""
    image: Document | None
    """The Image object that its Function names, built; None for an image of the catalog."""


class AttemptLeases:
    """Gives attempts to nodes."""

    def __init__(
        self,
        *,
        database: Database,
        cache: ObjectCache,
        writer: Writer,
        secrets: SecretReader,
        hasher: TokenHasher,
        clock: Clock,
    ) -> None:
        self._database = database
        self._cache = cache
        self._writer = writer
        self._secrets = secrets
        self._hasher = hasher
        self._clock = clock

    async def lease(self, attempt: str, epoch: int) -> Lease:
        """Everything to run the worker of an attempt; a repetition gives a new token and ends the one before.

        Raises NotFound when the attempt, its Function, its ServiceAccount or a Secret does not exist, Conflict when it
        has ended or has another epoch, Invalid when a Secret's value cannot be a variable, Unavailable when a Secret
        changes meanwhile.
        """
        row = await self._live(attempt, epoch)
        key = Key("Function", row["org"], row["project"], row["function"])
        function = await self._cache.read(key)
        if function is None or function["metadata"]["uid"] != row["function_uid"]:
            raise not_found("functions", row["function"])
        image = await self._image(key, function["spec"])
        revision = pool_revision(function, CATALOG if image is None else use_of(image))
        if revision != row["pool"]:
            # Its Function changed since it was decided on: it is what it is made of.
            await self._writer.write(_NoteRevision(attempt, revision))
        environments = await self._environments(key, function["spec"])
        account_uid = await self._account_uid(key, function["spec"])
        minted = await mint_attempt_token(
            self._database,
            self._hasher,
            attempt=attempt,
            epoch=epoch,
            now=self._clock.now(),
            account_uid=account_uid,
        )
        if minted is None:
            raise _over(attempt)
        failpoints.reach("worker-leased")
        used = tuple(dict.fromkeys(secret for environment in environments for secret in environment.secrets))
        versions = {version for environment in environments for version in environment.versions}
        if versions:
            await self._writer.write(HoldVersions(attempt, used, sorted(versions)))
        if used:
            await self._writer.write(NoteSecretUse(used))
        return Lease(
            token=minted[0],
            project=row["project"],
            function=row["function"],
            function_uid=row["function_uid"],
            concurrency=row["concurrency"],
            spec=function["spec"],
            variables=environments[0].variables,
            sidecar_variables=[environment.variables for environment in environments[1:]],
            image=image,
        )

    async def _environments(self, function_key: Key, spec: Document) -> list[WorkerEnvironment]:
        """That of the worker, then those of its sidecars, which have their own variables and none of the worker's."""
        specs = [spec, *({"env": sidecar.get("env")} for sidecar in spec.get("sidecars") or ())]
        return [await self._secrets.environment(function_key.org, function_key.project, one) for one in specs]

    async def _account_uid(self, function_key: Key, spec: Document) -> str | None:
        """The ServiceAccount that the worker acts as; None for one that has what every worker has."""
        name = spec.get("serviceAccountName")
        if name is None:
            return None
        account = await self._cache.read(Key("ServiceAccount", function_key.org, function_key.project, name))
        if account is None or "deletionTimestamp" in account["metadata"]:
            raise not_found("serviceaccounts", name)
        uid: str = account["metadata"]["uid"]
        return uid

    async def _image(self, function_key: Key, spec: Document) -> Document | None:
        """The Image that a Function names; Unavailable while it is not built, which the autoscaler waits for."""
        name = spec.get("imageRef")
        if name is None:
            return None
        image = await self._cache.read(Key("Image", function_key.org, function_key.project, name))
        if image is None:
            raise not_found("images", name)
        if image["status"].get("phase") != "Ready":
            raise ApiError(Reason.UNAVAILABLE, f'images.nodus.dev "{name}" is being built', retry_after_seconds=1)
        return image

    async def report_phase(
        self, attempt: str, epoch: int, phase: str, guarantees: Document | None, *, warm_reuse: bool | None = None
    ) -> None:
        """Note in the Attempt object how far its worker is, how it is isolated and whether it had been started ahead,
        and in the one before it in its slot that this one took its place; NotFound and Conflict as `lease` raises
        them."""
        row = await self._live(attempt, epoch)
        key = Key("Attempt", row["org"], row["project"], attempt)
        before = await self._database.fetchval(_BEFORE, attempt) if epoch > 1 else None
        await self._writer.write(
            _NotePhase(
                key,
                epoch,
                phase,
                guarantees,
                warm_reuse=warm_reuse,
                before=None if before is None else Key("Attempt", row["org"], row["project"], before),
            )
        )

    async def _live(self, attempt: str, epoch: int) -> asyncpg.Record:
        rows = await self._database.fetch(_ATTEMPT, attempt)
        if not rows:
            raise not_found("attempts", attempt)
        if rows[0]["epoch"] != epoch or rows[0]["finished_at"] is not None:
            raise _over(attempt)
        return rows[0]


class _NoteRevision:
    """Writes which revision a worker is of."""

    def __init__(self, attempt: str, revision: str) -> None:
        self._attempt = attempt
        self._revision = revision

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        tx.execute(_NOTE_REVISION, (self._attempt, self._revision))


class _NotePhase:
    """Writes what a phase says into the Attempt's status, unless the attempt has gone on to its end meanwhile."""

    def __init__(
        self,
        key: Key,
        epoch: int,
        phase: str,
        guarantees: Document | None,
        *,
        warm_reuse: bool | None,
        before: Key | None,
    ) -> None:
        self._key = key
        self._epoch = epoch
        self._phase = phase
        self._guarantees = guarantees
        self._warm_reuse = warm_reuse
        self._before = before

    def reads(self) -> Reads:
        return Reads(keys=(self._key,) if self._before is None else (self._key, self._before))

    def apply(self, tx: Tx) -> None:
        document = tx.get(self._key)
        if document is None or document["spec"]["epoch"] != self._epoch or "finishedTime" in _timings(document):
            return
        status = {**document["status"]}
        if self._phase in _MESSAGES:
            status["message"] = _MESSAGES[self._phase]
        if self._guarantees is not None:
            status["guarantees"] = self._guarantees
        if self._warm_reuse is not None:
            status["placement"] = {**status.get("placement", {}), "warmReuse": self._warm_reuse}
        if self._phase == "Starting":
            started = format_time(tx.now)
            status["timings"] = {**_timings(document), "commandStartedTime": started, "billingStartTime": started}
            tx.execute(STARTED, (self._key.name, tx.now))
        tx.put(self._key, {**document, "status": status})
        self._supersede(tx)

    def _supersede(self, tx: Tx) -> None:
        """Name this worker in the one whose place it took, and say how long an interrupted one was missed."""
        document = None if self._before is None else tx.get(self._before)
        if self._before is None or document is None:
            return
        status = {**document["status"], "supersededBy": self._key.name}
        interruption = status.get("interruption")
        if self._phase == "Ready" and interruption is not None and "recoverySeconds" not in interruption:
            missed = tx.now - parse_time(interruption["time"])
            status["interruption"] = {**interruption, "recoverySeconds": max(0, round(missed.total_seconds()))}
        tx.put(self._before, {**document, "status": status})


def _timings(document: Document) -> dict[str, Any]:
    timings: dict[str, Any] = document["status"].get("timings", {})
    return timings


def _over(attempt: str) -> ApiError:
    return ApiError(
        Reason.CONFLICT,
        f'attempts.nodus.dev "{attempt}" is over or was given to another worker',
        subject=("attempts", attempt),
        fix="Stop this worker; the server starts another where one is needed.",
    )
