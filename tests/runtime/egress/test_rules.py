"""Which hosts and ports a policy permits, and what counts as one."""

from __future__ import annotations

import pytest

from runtime.egress.rules import EgressRules, RefusedError, Target, allowed_hosts, parse_target

RULES = EgressRules(
    policy="AllowList",
    hosts=allowed_hosts(["Files.example.org", "*.parts.example.org", "93.184.215.14", "xn--bcher-kva.example"]),
    ports=frozenset({80, 443}),
)


@pytest.mark.parametrize(
    "authority",
    [
        "files.example.org:443",
        "FILES.Example.ORG:443",
        "files.example.org.:443",
        "files.example.org:80",
        "a.parts.example.org:443",
        "a.b.parts.example.org:443",
        "93.184.215.14:443",
        "xn--bcher-kva.example:443",
    ],
)
def test_listed_hosts_pass(authority: str) -> None:
    RULES.check(parse_target(authority))


@pytest.mark.parametrize(
    ("authority", "why"),
    [
        ("example.org:443", "the host example.org is not in spec.network.egress.allow"),
        ("a.files.example.org:443", "not in"),
        ("parts.example.org:443", "not in"),
        ("notparts.example.org:443", "not in"),
        ("files.example.org.evil.test:443", "not in"),
        ("93.184.215.15:443", "the address 93.184.215.15 is not in"),
        ("[2606:2800:21f:cb07:6820:80da:af6b:8b2c]:443", "the address"),
        ("files.example.org:22", "port 22 is not one of 80, 443"),
    ],
)
def test_what_is_not_listed_is_refused_with_the_field(authority: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why.replace("[", r"\[")) as refused:
        RULES.check(parse_target(authority))
    assert refused.value.code == 403
    assert "spec.network.egress" in refused.value.why + refused.value.fix


def test_an_address_is_no_subdomain() -> None:
    rules = EgressRules(policy="AllowList", hosts=frozenset({"*.0.0.1"}), ports=frozenset({443}))
    with pytest.raises(RefusedError):
        rules.check(parse_target("127.0.0.1:443"))


def test_open_reaches_any_name_and_port_but_the_closed_ones() -> None:
    rules = EgressRules(policy="Open", closed_ports=frozenset({25}))
    rules.check(parse_target("anything.example:5432"))
    with pytest.raises(RefusedError, match="port 25 is closed"):
        rules.check(parse_target("anything.example:25"))


def test_deny_reaches_nothing() -> None:
    with pytest.raises(RefusedError):
        EgressRules(policy="Deny").check(parse_target("files.example.org:443"))


@pytest.mark.parametrize(
    "authority",
    [
        "files.example.org",  # no port
        "files.example.org:",
        "files.example.org:0",
        "files.example.org:65536",
        "files.example.org:+443",
        "files.example.org:４４３",
        "files.example.org:443:443",
        "files.example.org..:443",
        ".files.example.org:443",
        ":443",
        "user@files.example.org:443",
        "user:secret@files.example.org:443",
        "files.example.org\r\nX: y:443",
        "files.example.org\x00.evil.test:443",
        "files.example.org%00:443",
        "files.example.org/:443",
        "bücher.example:443",
        "ﬁles.example.org:443",  # a ligature that IDNA maps to two letters
        "files。example。org:443",
        "-files.example.org:443",
        "a" * 64 + ".example:443",
        ("a" * 60 + ".") * 5 + "example:443",
        # What resolvers take for an address, and what no resolver should see.
        "2130706433:443",
        "0x7f000001:443",
        "0177.0.0.1:443",
        "127.1:443",
        "127.0.0.0x1:443",
        "1.2.3.4.5:443",
        "[::1:443",
        "[::1]443",
        "[::1%25lo]:443",
        "[::1%lo]:443",
        "[files.example.org]:443",
        "::1:443",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused_before_it_is_looked_up(authority: str) -> None:
    with pytest.raises(RefusedError, match="is not a host name and a port") as refused:
        parse_target(authority)
    assert refused.value.code == 400
    assert refused.value.why.isascii()
    assert refused.value.why.isprintable()
    assert len(refused.value.why) < 600


def test_targets_are_shown_as_they_are_compared() -> None:
    assert str(parse_target("A.Example.:443")) == "a.example:443"
    assert str(parse_target("[::FFFF:1.2.3.4]:443")) == "[::ffff:102:304]:443"
    assert parse_target("a.example", 80) == Target("a.example", 80)
