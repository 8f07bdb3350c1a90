"""Quotas as the public command line and kubectl show them."""

from __future__ import annotations

import re

import pytest

from controlplane.limits.quotas import Counter, Quota, set_quota
from tests.clients.test_nodus_cli import nodus
from tests.fixtures.clients import ClientSide, fetched


@pytest.mark.parametrize("client", ["nodus", "kubectl-v34"])
async def test_a_project_and_its_quota_are_listed(client_side: ClientSide, client: str) -> None:
    side, project = client_side, client_side.project
    await side.api.function("f")
    quota = Quota(org="default", project=project, counter=Counter.FUNCTIONS, amount_max=3)
    await set_quota(side.api.core.database, quota)
    shown = rf"(?m)^project-{project} +{project} +functions 1/3 "
    if client == "nodus":
        listed = await nodus(side, "get quotas")
        one = await nodus(side, f"get quota project-{project} -o yaml")
    else:
        kubectl = fetched(client)
        listed = await side.run(kubectl, "get", "quotas.nodus.dev")
        one = await side.run(kubectl, "get", "quotas.nodus.dev", f"project-{project}", "-o", "yaml")
    assert re.search(shown, listed.stdout), listed.stdout
    assert re.search(r"limits:\n +functions: [\"']3[\"']", one.stdout), one.stdout
