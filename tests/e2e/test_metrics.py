"""What Prometheus reads from a running system: every metric of the table, and what the writer counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from controlplane.metrics import METRICS
from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, System, installation
from workers.engines.child import free_port, is_free
from workers.metrics_server import WRITER_COUNTERS

pytestmark = pytest.mark.e2e


@pytest.fixture
def port() -> int:
    """A free one whose next one is free as well, as two processes of `up` want."""
    for _ in range(100):
        found = free_port()
        if is_free(found + 1):
            return found
    raise AssertionError("no two free ports in a row")


@pytest.fixture
def measured(tmp_path: Path, port: int) -> Iterator[System]:
    """A system that tells its metrics."""
    with installation(tmp_path / "data", {"metrics_port": str(port)}) as system:
        system.start()
        yield system


def scraped(port: int) -> dict[str, float]:
    """Each sample with its labels, as Prometheus reads them."""
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).raise_for_status()
    lines = [line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#")]
    return {sample: float(value) for sample, value in lines if "_created" not in sample}


async def test_each_process_tells_what_it_counts(measured: System, port: int) -> None:
    measured.nodus("deploy", str(APPS / "slow" / "slow.py"))
    measured.python("import nodus; print(nodus.Function.from_name('slow', 'nap').remote(1, 0))")

    def of_api() -> bool:
        told = scraped(port)
        created = told.get('nodus_requests_total{method="POST",status="201"}', 0)
        return created >= 1 and told["nodus_writer_mutations_total"] > 1

    def of_control() -> bool:
        told = scraped(port + 1)
        return told["nodus_ledger_audits_total"] >= 1 and told.get('nodus_workers{state="ready"}') == 1

    await eventually(of_api)
    await eventually(of_control, within=120)
    assert scraped(port + 1)["nodus_ledger_breaches_total"] == 0
    told = {sample.split("{")[0] for sample in (*scraped(port), *scraped(port + 1))}
    assert told == METRICS.keys() | {f"nodus_writer_{field}_total" for field in WRITER_COUNTERS}
