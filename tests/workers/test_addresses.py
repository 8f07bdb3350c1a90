"""Which address of the API is told to whom."""

from __future__ import annotations

import pytest

from workers.addresses import Addresses, passed_over

HTTP, HTTPS = "http://127.0.0.1:80", "https://127.0.0.1:443"


@pytest.mark.parametrize(
    ("given", "tls", "clients", "https", "links", "needs_trust"),
    [
        ("", False, HTTP, HTTPS, HTTP, False),
        ("", True, HTTPS, HTTPS, HTTPS, True),
        ("http://nodus.example/", False, HTTP, HTTPS, "http://nodus.example", False),
        ("http://nodus.example", True, HTTPS, HTTPS, "http://nodus.example", True),
        ("https://nodus.example/a/", False, HTTP, "https://nodus.example/a", "https://nodus.example/a", True),
        (
            "https://nodus.example",
            True,
            "https://nodus.example",
            "https://nodus.example",
            "https://nodus.example",
            True,
        ),
    ],
)
def test_what_is_handed_out_names_the_public_url_where_there_is_one(
    given: str, tls: bool, clients: str, https: str, links: str, needs_trust: bool
) -> None:
    addresses = Addresses(http_port=80, https_port=443, given=given, tls=tls)
    assert addresses.http == HTTP
    assert (addresses.clients, addresses.https, addresses.links, addresses.needs_trust) == (
        *(clients, https, links),
        needs_trust,
    )


def test_settings_that_are_given_and_decided_otherwise_are_told() -> None:
    environ = {
        "NODUS_SERVER_HTTP_HOST": "0.0.0.0",
        "NODUS_SERVER_DATABASE_URL": "postgresql://elsewhere/nodus",
        "NODUS_SERVER_TEMPORAL_ADDRESS": "",
        "NODUS_SERVER_PUBLIC_URL": "https://nodus.example",
        "NODUS_SERVER_WORKERS_MAX": "4",
    }
    decided = ("database_url", "temporal_address", "http_host", "public_url", "tls_key")
    assert passed_over(environ, decided) == ["NODUS_SERVER_DATABASE_URL", "NODUS_SERVER_HTTP_HOST"]
