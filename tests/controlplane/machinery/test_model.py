from __future__ import annotations

import pytest

from controlplane.machinery.model import wire_name


@pytest.mark.parametrize(
    ("python", "wire"),
    [
        ("name", "name"),
        ("max_cost_usd", "maxCostUSD"),
        ("rate_usd_per_hour", "rateUSDPerHour"),
        ("index_url", "indexURL"),
        ("extra_index_urls", "extraIndexURLs"),
        ("map_id", "mapId"),
        ("sha256", "sha256"),
        ("copy_", "copy"),
        ("value_from", "valueFrom"),
    ],
)
def test_names_keep_their_acronyms_on_the_wire(python: str, wire: str) -> None:
    assert wire_name(python) == wire
