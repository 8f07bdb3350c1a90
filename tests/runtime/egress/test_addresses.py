"""Which addresses the proxy connects to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from runtime.egress.addresses import parse_networks, refusal

REFUSED = {
    "0.0.0.0": "this host",
    "10.1.2.3": "private",
    "100.64.0.1": "carrier",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "169.254.1.1": "metadata",
    "169.254.169.254": "metadata",
    "169.254.170.2": "metadata",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.0.0.8": "protocol",
    "192.0.2.1": "documentation",
    "192.88.99.1": "6to4",
    "192.168.0.1": "private",
    "198.19.0.1": "benchmarks",
    "224.0.0.1": "multicast",
    "255.255.255.255": "reserved",
    "168.63.129.16": "metadata",
    "100.100.100.200": "metadata",
    "::": "not a public",
    "::1": "loopback",
    "::127.0.0.1": "not a public",
    "::ffff:127.0.0.1": "IPv4",
    "::ffff:93.184.215.14": "IPv4",
    "::ffff:0:127.0.0.1": "not a public",
    "64:ff9b::127.0.0.1": "loopback",
    "64:ff9b::169.254.169.254": "metadata",
    "64:ff9b:1::10.0.0.1": "not a public",
    "2001::1": "protocol",
    "2001:db8::1": "documentation",
    "2002:7f00:1::": "IPv4",
    "3fff::1": "documentation",
    "fc00::1": "private",
    "fd00:ec2::254": "metadata",
    "fec0::1": "not a public",
    "fe80::1": "link-local",
    "ff02::1": "multicast",
    "5f00::1": "not a public",
}


@pytest.mark.parametrize(("address", "what"), REFUSED.items())
def test_what_is_not_public_is_refused_by_name(address: str, what: str) -> None:
    said = refusal(ip_address(address), [])
    assert said is not None
    assert what in said


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111", "64:ff9b::5db8:d70e"]
)
def test_public_addresses_pass(address: str) -> None:
    assert refusal(ip_address(address), []) is None


def test_an_opened_range_passes_and_nothing_beside_it() -> None:
    opened = parse_networks(["10.20.0.0/16", "fd00:20::/32"])
    assert refusal(ip_address("10.20.3.4"), opened) is None
    assert refusal(ip_address("fd00:20::1"), opened) is None
    assert refusal(ip_address("64:ff9b::10.20.3.4"), opened) is None
    assert refusal(ip_address("10.21.0.1"), opened) == "a private network"


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "64:ff9b::a9fe:a9fe"])
def test_no_range_opens_a_metadata_service(address: str) -> None:
    opened = parse_networks(["0.0.0.0/0", "::/0"])
    assert refusal(ip_address(address), opened) == "a metadata service of a cloud"
