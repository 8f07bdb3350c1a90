"""The autoscaler: keeps every Function's pool at what its calls need, and its status true.

It is woken by every change of a Function, a call or a worker, looks at the Functions concerned in a few queries, asks
the pure rule (`controlplane/capacity/pool.py`) and carries the plan out: rows first, workflows second. A look that
finds nothing to do makes the next one of that Function wait a little, so a burst of calls costs a few looks a second.
Every few seconds all Functions with workers or calls, or `minWorkers`, are looked at, so a lost wake-up costs latency
only. Workers that are to go are in `activities/departures.py`, Functions that are to go in `activities/farewell.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from activities.budgets import LimitsOfWorkers
from activities.departures import Departures, attempt_input
from activities.engine import Engine, EngineUnavailableError
from activities.farewell import Farewell
from activities.host_shares import HostShares, Round
from activities.pool_look import Look
from activities.pool_memory import PoolMemory
from activities.queue_explainer import QueueExplainer
from controlplane import failpoints
from controlplane.calls.queries import CallQueries
from controlplane.calls.reports import Redactor
from controlplane.capacity.attempts import StartOrder, StartWorkers
from controlplane.capacity.function_status import Band, WriteFunctionStatus
from controlplane.capacity.pool import PoolFacts, PoolPlan, plan
from controlplane.capacity.revision import pool_revision
from controlplane.capacity.rows import AttemptState, NodeLoad, WorkerQueries, WorkerRow
from controlplane.clock import Clock
from controlplane.errors import ApiError
from controlplane.images.use import concerned_functions, image_use
from controlplane.ledger.function_funds import function_funds
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.limits.switches import Switches
from controlplane.limits.worker_quotas import WorkerRoom, project_key, read_room
from controlplane.placement.demand import Demand
from controlplane.placement.placements import Placements
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change, ChangeType, Document, Key
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

FUNCTIONS_PER_LOOK = 64
LOST_STARTS = 64
RETRY_SECONDS = 1.0
REMEMBERED_RESYNCS = 3
"""For so many rounds over all Functions a wish for workers counts that no look has confirmed."""


class Autoscaler:
    """The loop. One object lives as long as its process; `run` is called whenever this process is elected."""

    def __init__(
        self,
        *,
        database: Database,
        writer: Writer,
        feed: ChangeFeed,
        cache: ObjectCache,
        engine: Engine,
        departures: Departures,
        farewell: Farewell,
        explainer: QueueExplainer,
        redactor: Redactor,
        switches: Switches,
        placements: Placements,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._switches, self._settings, self._clock = switches, settings, clock
        self._database, self._writer, self._cache = database, writer, cache
        self._engine = engine
        self._departures, self._farewell = departures, farewell
        self._explainer = explainer
        self._redactor = redactor
        self._calls = CallQueries(database)
        self._workers = WorkerQueries(database)
        self._funding = FundingRules.from_settings(settings)
        self._placements = placements
        self._limits = LimitsOfWorkers(database, writer, cache, clock)
        self._due: dict[Key, float] = {}
        self._memory: dict[str, PoolMemory] = {}
        self._not_before: dict[Key, float] = {}
        self._crowded: set[Key] = set()
        self._shares = HostShares(
            settings.workers_max,
            settings.fair_share_grace_seconds,
            REMEMBERED_RESYNCS * settings.autoscaler_resync_seconds,
        )
        self._pressure = False
        self._elected = False
        self._wake = asyncio.Event()
        feed.add_listener(self._changed)

    async def run(self) -> None:
        """Look at Functions as they change until cancelled."""
        # What changed while another process was elected was not noted here, so everything is looked at.
        at = asyncio.get_running_loop().time()
        self._due = {key: at for key, _ in self._cache.of_kind("Function")}
        self._elected = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resync_for_ever())
                group.create_task(self._look_for_ever())
        finally:
            self._elected = False
            self._due.clear()

    # Waking.

    def _changed(self, changes: Sequence[Change]) -> None:
        if not self._elected:
            return  # Nobody looks, so what is noted would only grow.
        at = asyncio.get_running_loop().time()
        for change in changes:
            kind, key = change.key.kind, change.key
            if kind in ("Function", "Image"):
                for function in concerned_functions(key, self._cache):
                    self._mark(function, at)
            elif kind == "FunctionCall":
                self._call_changed(change, at)
            elif kind == "Attempt":
                self._mark(Key("Function", key.org, key.project, change.labels.get("nodus.dev/function", "")), at)
                # A start that ended one way or the other, and a worker that went, leave room for the next one.
                for crowded in self._crowded:
                    self._mark(crowded, at)
        self._wake.set()

    def _call_changed(self, change: Change, at: float) -> None:
        key = Key("Function", change.key.org, change.key.project, change.fields.get("spec.function", ""))
        self._mark(key, at)
        function = self._cache.get(key)
        memory = self._memory.get(function["metadata"]["uid"]) if function is not None else None
        if memory is None or memory.seen is None:
            return
        if not memory.seen.ready and not memory.seen.starting:
            # Nobody serves the call: it must not wait for the pause after an idle look.
            self._not_before.pop(key, None)
        phase = change.fields.get("status.phase")
        if change.type is ChangeType.ADDED and phase == "Queued":
            memory.queued(change.uid, at)
        elif phase == "Running":
            memory.claimed(change.uid, at)
        else:
            memory.ended(change.uid)

    def _mark(self, key: Key, at: float) -> None:
        self._due[key] = min(self._due.get(key, at), at)

    async def _resync_for_ever(self) -> None:
        while True:
            known = {document["metadata"]["uid"]: key for key, document in self._cache.of_kind("Function")}
            with_workers = await self._workers.functions_with_workers()
            await self._departures.abandon(with_workers - known.keys())
            await asyncio.gather(*(self._look_after(row) for row in await self._workers.without_workflow(LOST_STARTS)))
            at = asyncio.get_running_loop().time()
            busy = {load.function_uid for load in await self._calls.busy_loads()}
            for uid, key in known.items():
                document = self._cache.get(key)
                is_wanting = document is not None and (_is_leaving(document) or _is_never_without(document))
                if uid in with_workers or uid in busy or uid not in self._memory or is_wanting:
                    self._mark(key, at)
            self._memory = {uid: memory for uid, memory in self._memory.items() if uid in known}
            self._crowded.intersection_update(known.values())
            self._not_before = {key: until for key, until in self._not_before.items() if until > at}
            self._wake.set()
            await asyncio.sleep(self._settings.autoscaler_resync_seconds)

    async def _look_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = [key for key in self._due if self._due_at(key) <= loop.time()][:FUNCTIONS_PER_LOOK]
            if not due:
                next_at = min((self._due_at(key) for key in self._due), default=None)
                try:
                    async with asyncio.timeout_at(next_at):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
                continue
            for key in due:
                del self._due[key]
            try:
                await self._look(due)
            except ApiError as error:
                log.warning("functions could not be looked at, trying again", told=error.message)
                for key in due:
                    self._mark(key, loop.time() + RETRY_SECONDS)

    def _due_at(self, key: Key) -> float:
        return max(self._due[key], self._not_before.get(key, 0.0))

    # Looking.

    async def _look(self, keys: Iterable[Key]) -> None:
        """Gather facts about these Functions in five queries, and what each could use; then act on each."""
        documents = {key: document for key in keys if (document := self._cache.get(key)) is not None}
        images = {key: image_use(key, document, self._cache) for key, document in documents.items()}
        revisions = {
            document["metadata"]["uid"]: pool_revision(document, images[key]) for key, document in documents.items()
        }
        if not documents:
            return
        capacities = {key: self._placements.of(document["spec"]) for key, document in documents.items()}
        priced = {
            document["metadata"]["uid"]: capacities[key].bound_as(document)
            for key, document in documents.items()
            if self._placements.is_priced
        }
        projects = {project_key(key.org, key.project) for key in documents}
        loads, workers, starts, node, room, funds = await asyncio.gather(
            self._calls.loads(list(revisions)),
            self._workers.live(list(revisions)),
            self._workers.start_records(revisions),
            self._workers.node_load(self._settings.node_name),
            read_room(self._database, sorted(projects)),
            function_funds(self._database, self._funding, priced, documents, self._cache, self._clock.now()),
        )
        looks: list[tuple[Look, PoolMemory, PoolFacts]] = []
        at = asyncio.get_running_loop().time()
        for key, document in documents.items():
            uid = document["metadata"]["uid"]
            demand = Demand.from_spec(document["spec"])
            look = Look(
                key=key,
                document=document,
                revision=revisions[uid],
                load=loads.get(uid),
                workers=workers[uid],
                starts=starts[uid],
                image=images[key],
                funds=funds[uid],
                demand=demand,
                quota=room.fit(project_key(key.org, key.project), demand),
                capacity=capacities[key],
            )
            memory = self._memory.setdefault(uid, PoolMemory(since=self._clock.now()))
            await self._measure(look, memory)
            facts = look.facts(
                memory,
                now=self._clock.now(),
                suspended=self._switches.is_suspended(key.org),
                pressure=self._pressure or self._shares.is_over_quota(key.org),
                settings=self._settings,
            )
            wish = plan(facts)
            self._shares.note(key, wish.start, at, lacks_quota=wish.lacks_quota)
            looks.append((look, memory, facts))
        await self._act_on_all(looks, room, self._share(node, at), node.starting)

    async def _act_on_all(
        self, looks: Sequence[tuple[Look, PoolMemory, PoolFacts]], room: WorkerRoom, places: Round, starting: int
    ) -> None:
        """Act on each with what those before it have left of places and quotas."""
        telling = []
        for look, memory, found in looks:
            fit = room.fit(look.project, look.demand)
            facts = replace(
                found,
                quota_room=fit.more,
                host_room=places.grants.get(look.project, 0),
                give_back=places.returns.get(look.project, 0),
            )
            told, started = await self._act(look, memory, facts, starting)
            starting += started
            room.take(look.project, look.demand, started)
            places.take(look.project, started=started, drained=len(told.drain))
            telling.append(self._tell(replace(look, quota=fit), told, memory, started=started))
        await asyncio.gather(*telling)

    def _share(self, node: NodeLoad, at: float) -> Round:
        """Whose the places of the host are in this round. Functions that may have to make room are looked at soon."""
        places = self._shares.round(node, at)
        is_news = places.is_short and not self._pressure
        for key, _ in self._cache.of_kind("Function") if is_news or places.returns else ():
            if is_news or project_key(key.org, key.project) in places.returns:
                self._mark(key, at)
        self._pressure = places.is_short
        return places

    async def _act(self, look: Look, memory: PoolMemory, facts: PoolFacts, starting: int) -> tuple[PoolPlan, int]:
        """Start and drain what one Function needs; the plan, and how many workers were started."""
        told = plan(facts)
        count = min(told.start, max(0, self._settings.worker_starts_in_flight_max - starting))
        is_crowded = count < told.start or told.lacks_quota or told.lacks_room
        (self._crowded.add if is_crowded else self._crowded.discard)(look.key)
        rows = await self._start(look, count) if count else []
        await self._departures.drain(look.workers, told.drain, hurry=look.deleting)
        if look.deleting:
            await self._farewell.advance(look.key, look.uid, alive=bool(look.workers))
        elif told.failed and not any(worker.row.state == AttemptState.READY for worker in look.workers):
            await self._farewell.fail_calls(look.uid, look.image.message or memory.failure_message)
        return told, len(rows)

    async def _start(self, look: Look, count: int) -> list[WorkerRow]:
        order = StartOrder(
            function_key=look.key,
            function_uid=look.uid,
            revision=look.revision,
            count=count,
            node=self._settings.node_name,
            node_workers_max=self._settings.workers_max,
            seen=frozenset(worker.row.uid for worker in look.workers),
            capacity=look.capacity,
            funding=self._funding,
            demand=look.demand,
            limits=await self._limits.opened(look.key) if look.capacity.rate_micro_usd_per_hour else (),
        )
        rows = await self._writer.write(StartWorkers(order))
        if rows:
            failpoints.reach("worker-created")
        await asyncio.gather(*(self._look_after(row) for row in rows))
        return rows

    async def _look_after(self, row: WorkerRow) -> None:
        """Start the workflow of a worker; when the engine is away, the next resync does it."""
        try:
            await self._engine.start_attempt(attempt_input(row))
        except EngineUnavailableError as error:
            log.warning("a worker waits for the engine", attempt=row.uid, told=str(error))
            return
        failpoints.reach("worker-started")
        await self._workers.mark_started(row.uid)

    # Telling.

    async def _tell(self, look: Look, told: PoolPlan, memory: PoolMemory, *, started: int) -> None:
        """Write the Function's status if it changed and was not written a moment ago; say when to look again."""
        memory.seen = look.observation(told, memory, started=started)
        at = asyncio.get_running_loop().time()
        next_write_at = memory.written_at + self._settings.function_status_seconds
        if memory.seen != memory.written and at >= next_write_at:
            memory.written, memory.written_at = memory.seen, at
            failpoints.reach("load-observed")
            await self._writer.write(WriteFunctionStatus(look.key, look.uid, memory.seen))
        elif memory.seen != memory.written:
            self._mark(look.key, next_write_at)
        explain_at = await self._explainer.explain(look.document, memory.seen, look.workers)
        if explain_at is not None:
            self._mark(look.key, explain_at)
        if memory.seen.lacks_funds or memory.seen.lacks_quota or memory.seen.lacks_room:
            patience = min(self._settings.autoscaler_resync_seconds, self._settings.fair_share_grace_seconds)
            self._mark(look.key, at + patience)
        if told.again_at is not None:
            self._mark(look.key, at + (told.again_at - self._clock.now()).total_seconds())
        if not started and not told.drain:
            self._not_before[look.key] = at + self._settings.autoscaler_pause_seconds

    async def _measure(self, look: Look, memory: PoolMemory) -> None:
        """Read what only changes when a start ended: how long starts take, and what the last failed one printed."""
        ready = {worker.row.uid for worker in look.workers if worker.row.state == AttemptState.READY}
        if ready - memory.ready_known:
            seconds = await self._workers.start_seconds(look.uid)
            memory.cold = Band(p50_seconds=seconds[0], p90_seconds=seconds[1]) if seconds else None
        memory.ready_known = ready
        failure = look.starts.last_failure_uid
        if failure is not None and failure != memory.failure_uid:
            memory.failure_uid = failure
            redact = await self._redactor(look.uid)
            printed = redact(await self._workers.last_output(failure))
            memory.failure_message = "\n".join(filter(None, [look.starts.last_failure_message, printed]))


def _is_leaving(function: Mapping[str, Document]) -> bool:
    return "deletionTimestamp" in function.get("metadata", {})


def _is_never_without(function: Document) -> bool:
    """Whether it wants workers without any call. Nothing changes when an operator lets its organisation go on."""
    return bool(function["spec"]["scaling"]["minWorkers"])
