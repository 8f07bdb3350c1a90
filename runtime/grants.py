"""What a host grants to a plan before anything of it starts: limits, the size of its folders, accelerators."""

from __future__ import annotations

import contextlib

from runtime.cgroups import Limits
from runtime.disks import scratch_bytes
from runtime.environments import Environment
from runtime.gpus import NO_LEASE, GpuLease, Gpus
from runtime.host import HostLimits
from runtime.plans import StartPlan, WorkerPlan
from runtime.templates import Template, worker_template


def granted_limits(plan: WorkerPlan, limits: HostLimits) -> Limits:
    """What bounds the processes of the worker and its sidecars together."""
    return Limits(
        memory_bytes_max=plan.memory_bytes_max or limits.worker_memory_bytes_max,
        pids_max=limits.pids_max,
        cpus_least=plan.cpus_least,
        cpus_max=plan.cpus_max,
    )


def granted_template(plan: WorkerPlan, environment: Environment, limits: HostLimits) -> Template:
    """What the worker is made of. Raises DiskUnavailableError."""
    scratch = scratch_bytes(
        plan.disk_bytes_least,
        given_bytes=limits.scratch_bytes_max,
        memory_bytes=plan.memory_bytes_least,
        worker_memory_bytes_max=limits.worker_memory_bytes_most,
    )
    return worker_template(environment, scratch)


def lease_gpus(plan: WorkerPlan, gpus: Gpus, stack: contextlib.AsyncExitStack) -> GpuLease:
    """The accelerators that the plan asks for, none if none; given back with `stack`. Raises GpuUnavailableError."""
    if plan.gpus is None:
        return NO_LEASE
    lease = gpus.lease(plan.gpus)
    stack.callback(lease.release)
    return lease


def may_have_waited(plan: WorkerPlan, template: Template, caps: Limits, by_group: frozenset[str]) -> bool:
    """Whether a worker that waits could be this one: it is the public one, alone, and has no accelerator.

    `by_group` is what this host's control groups can limit.
    """
    if plan.start != StartPlan() or plan.sidecars or plan.gpus is not None:
        return False
    if caps.memory_bytes_max is not None and "memory" not in by_group:
        # What waits has begun, and a limit of single processes is set before that.
        return False
    # What bounds a worker of an image while it waits must be replaced by bounds of this attempt.
    return template.image is None or (caps.memory_bytes_max is not None and caps.cpus_least is not None)
