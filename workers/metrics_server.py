"""Serves the metrics of a process to Prometheus, from a thread of its own: a scrape holds up no request.

The table is `controlplane/metrics.py`. What the writer counts anyway is read from it when somebody asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.metrics import REGISTRY
from controlplane.settings import Settings
from controlplane.store.writer import WriterStats

WRITER_COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "batches": "Transactions that were committed.",
        "mutations": "Mutations in them, refused ones included.",
        "refused": "Mutations answered with an error of their own.",
        "retries": "Batches tried again after a passing fault of the database.",
        "unavailable": "Mutations given up because the database stayed away or the queue was full.",
        "broken": "Mutations that the database refused to store.",
        "seconds": "Time spent in transactions, failed ones included.",
    }
)
"""Fields of WriterStats, each told as `nodus_writer_<field>_total`."""


class WriterCollector(Collector):
    """Reads the writer's counts."""

    def __init__(self, stats: WriterStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """One counter for each field."""
        for field, told in WRITER_COUNTERS.items():
            yield CounterMetricFamily(f"nodus_writer_{field}", told, value=getattr(self._stats, field))


@contextlib.contextmanager
def metrics_served(settings: Settings, stats: WriterStats) -> Iterator[None]:
    """Serve `/metrics` for as long as the block runs, if the settings name a port. OSError when it is taken."""
    if not settings.metrics_port:
        yield
        return
    collector = WriterCollector(stats)
    REGISTRY.register(collector)
    server, thread = start_http_server(settings.metrics_port, settings.metrics_host, REGISTRY)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        REGISTRY.unregister(collector)
