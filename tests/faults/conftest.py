"""The cluster of the fault tests: one for all of them, since each kills what it likes and leaves everything running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest

from tests.faults.cluster import Cluster


@pytest.fixture(scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Everything, running."""
    made = Cluster(tmp_path_factory.mktemp("faults") / "cluster")
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the members' logs to the report of a test that failed."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Cluster):
                report.sections.append(("logs of the cluster", value.tails()))
    return report
