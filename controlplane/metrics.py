"""What a process counts of itself: one table of metrics, and the two ways to change one.

A name or a label that is not in the table is an error, so what operators draw and alert on is all here. Labels come
from small closed sets, never from a client: each combination is kept for as long as the process lives.
`workers/metrics_server.py` serves them to Prometheus; counting costs the same whether anybody asks or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge


@dataclass(frozen=True, slots=True)
class Metric:
    """One row: a counter, which only grows and whose name ends in `_total`, or a gauge."""

    help: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "nodus_requests_total": Metric("Requests that were answered.", ("method", "status")),
        "nodus_request_seconds_total": Metric(
            "Time until their ends, waiting claims and watches included.", ("method",)
        ),
        "nodus_audit_events_lost_total": Metric("Events of the audit log that could not be kept."),
        "nodus_calls": Metric("Calls that have not ended, of all organisations.", ("state",)),
        "nodus_workers": Metric("Workers that have not ended.", ("state",)),
        "nodus_ledger_audits_total": Metric("Times the ledger was added up."),
        "nodus_ledger_breaches_total": Metric("Rules of the ledger that were found not to hold."),
    }
)

REGISTRY = CollectorRegistry()
"""Of this process; the library's own default is not used, so that nothing else gets in."""
_COUNTERS = {
    name: Counter(name, metric.help, metric.labels, registry=REGISTRY)
    for name, metric in METRICS.items()
    if name.endswith("_total")
}
_GAUGES = {
    name: Gauge(name, metric.help, metric.labels, registry=REGISTRY)
    for name, metric in METRICS.items()
    if not name.endswith("_total")
}


def add(name: str, amount: float = 1, **labels: str) -> None:
    """Let a counter grow."""
    counter = _COUNTERS[name]
    (counter.labels(**labels) if labels else counter).inc(amount)


def put(name: str, value: float, **labels: str) -> None:
    """Set a gauge."""
    gauge = _GAUGES[name]
    (gauge.labels(**labels) if labels else gauge).set(value)
