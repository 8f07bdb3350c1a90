"""One look at a Function's pool: what was found, as the facts of the rule and as what the Function's status tells.

`activities/autoscaler.py` gathers a `Look` from SQL and the cache; the rule that takes the facts is
`controlplane/capacity/pool.py`, and the status is written by `controlplane/capacity/function_status.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from activities.pool_memory import PoolMemory
from controlplane.calls.outcomes import duration_seconds
from controlplane.calls.queries import FunctionLoad
from controlplane.capacity.function_status import Observation
from controlplane.capacity.pool import Member, PoolFacts, PoolPlan, desired_workers, member_of
from controlplane.capacity.revision import requests
from controlplane.capacity.rows import LiveWorker, StartRecord
from controlplane.images.use import ImageUse
from controlplane.kinds.quotes import within_quote
from controlplane.ledger.function_funds import FunctionFunds
from controlplane.limits.worker_quotas import Fit, project_key
from controlplane.placement.capacity import Capacity
from controlplane.placement.demand import Demand
from controlplane.settings import Settings
from controlplane.store.contract import Document, Key


@dataclass(frozen=True, kw_only=True)
class Look:
    """One Function as it was found."""

    key: Key
    document: Document
    revision: str
    load: FunctionLoad | None
    workers: Sequence[LiveWorker]
    starts: StartRecord
    image: ImageUse
    funds: FunctionFunds
    demand: Demand
    quota: Fit
    """What quotas leave, less what this round of looks has started."""
    capacity: Capacity
    """What one more worker would run on, and at which rate if the Function is bound to no lower quote."""

    @property
    def uid(self) -> str:
        """The Function's uid."""
        return str(self.document["metadata"]["uid"])

    @property
    def deleting(self) -> bool:
        """Whether the Function is being deleted."""
        return "deletionTimestamp" in self.document["metadata"]

    @property
    def rate_micro_usd_per_hour(self) -> int:
        """What one more worker costs this Function."""
        return within_quote(self.document, self.capacity.rate_micro_usd_per_hour)

    @property
    def project(self) -> str:
        """Whose share of the host its workers are of."""
        return project_key(self.key.org, self.key.project)

    @property
    def capped(self) -> bool:
        """Whether it has reached its `maxCostUSD`."""
        queued, running = (self.load.queued, self.load.running) if self.load else (0, 0)
        return self.funds.cap is not None and self.funds.cap.is_reached(queued=queued, running=running)

    @property
    def members(self) -> Sequence[Member]:
        """Its workers as the rule sees them."""
        concurrency = self.document["spec"]["scaling"]["targetConcurrency"]
        return [member_of(worker, self.revision, concurrency) for worker in self.workers]

    def facts(
        self, memory: PoolMemory, *, now: datetime, suspended: bool, pressure: bool, settings: Settings
    ) -> PoolFacts:
        """What the rule asks about, with all of the host for room; the memory notes the load that it sees."""
        scaling = self.document["spec"]["scaling"]
        window = timedelta(seconds=duration_seconds(scaling["scaledownWindow"]))
        state = self.document["spec"].get("state")
        facts = PoolFacts(
            now=now,
            wanted=not (self.deleting or state == "Stopped" or suspended),
            deleting=self.deleting,
            queued=self.load.queued if self.load else 0,
            running=self.load.running if self.load else 0,
            alone=self.load.alone if self.load else 0,
            min_workers=scaling["minWorkers"],
            max_workers=scaling["maxWorkers"],
            target_concurrency=scaling["targetConcurrency"],
            scaledown_window=window,
            members=self.members,
            peak_workers=memory.peak(now, window),
            start_failures=self.starts.failures,
            last_failure_at=self.starts.last_failure_at,
            start_failures_max=settings.start_failures_max,
            lost_starts=self.starts.lost_starts,
            last_lost_at=self.starts.last_lost_at,
            host_room=settings.workers_max,
            funded_room=self.funds.workers_more,
            quota_room=self.quota.more,
            placeable=not self.capacity.lacking,
            image=self.image.state,
            capped=self.capped,
            pressure=pressure,
        )
        memory.note_load(now, desired_workers(facts), window)
        return facts

    def observation(self, told: PoolPlan, memory: PoolMemory, *, started: int) -> Observation:
        """What the Function's status tells after the plan was carried out and `started` workers were started."""
        staying = [member for member in self.members if not member.draining]
        ready = [member for member in staying if member.ready]
        busy = sum(member.busy > 0 for member in ready)
        load = self.load
        burn = sum(worker.row.rate_micro_usd_per_hour for worker in self.workers)
        return Observation(
            busy=busy,
            idle=len(ready) - busy,
            starting=len(staying) - len(ready) + started,
            draining=len(self.workers) - len(staying),
            current_ready=sum(member.current for member in ready),
            queued=load.queued + load.pending if load else 0,
            running=load.running if load else 0,
            charge_micro_usd=load.charge_micro_usd if load else 0,
            burn_micro_usd_per_hour=burn + started * self.rate_micro_usd_per_hour,
            start_failures=self.starts.failures,
            failed=told.failed,
            failure_message=memory.failure_message if self.starts.failures else "",
            lost_worker=self.starts.lost_worker,
            no_offering=self.capacity.lacking,
            lacks_room=told.lacks_room,
            lacks_funds=told.lacks_funds or self.capped or (self.funds.workers_more == 0 and not staying),
            capped=self.capped,
            lacks_quota=self.quota.told if told.lacks_quota else "",
            funds=self.funds,
            cold=memory.cold,
            warm=memory.warm,
            image=self.image,
            handled_requests=self._handled(told),
            generation=self.document["metadata"].get("generation", 1),
        )

    def _handled(self, told: PoolPlan) -> Mapping[str, str]:
        """What was requested, once no worker that is older than that takes new calls."""
        leaving = {uid for uid, _ in told.drain}
        staying = [worker.row for worker in self.workers if not worker.row.draining and worker.row.uid not in leaving]
        return requests(self.document) if all(row.pool == self.revision for row in staying) else {}
