from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.machinery.quantities import (
    NANOSECONDS,
    canonical_duration,
    canonical_money,
    canonical_quantity,
    canonical_time,
    format_duration,
    format_money,
    parse_duration,
    parse_duration_nanoseconds,
    parse_money,
    parse_quantity,
    quantity_bytes,
    quantity_milli,
)


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        ("300s", 300, "300s"),
        ("0s", 0, "0s"),
        ("0", 0, "0s"),
        ("1h30m", 5_400, "5400s"),
        ("1.5h", 5_400, "5400s"),
        ("0.5s", 0.5, "0.5s"),
        (".5s", 0.5, "0.5s"),
        ("1.s", 1, "1s"),
        ("500ms", 0.5, "0.5s"),
        ("1m0.25s", 60.25, "60.25s"),
        ("7µs", 0.000007, "0.000007s"),
        ("7us", 0.000007, "0.000007s"),
        ("1ns", 1e-9, "0.000000001s"),
        ("007s", 7, "7s"),
        ("2m30s", 150, "150s"),
    ],
)
def test_a_duration_is_read_as_go_reads_it_and_kept_in_seconds(text: str, seconds: float, canonical: str) -> None:
    assert parse_duration(text) == seconds
    assert canonical_duration(text) == canonical


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "+5s", "5 s", "5S", "1e3s", "1d", "٣s", "5s5", ".s", "9" * 12 + "h", "1s" * 40]
)
def test_what_go_does_not_read_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        canonical_duration(text)


@given(st.integers(0, 10**15))
def test_the_canonical_duration_means_the_same_time(nanoseconds: int) -> None:
    text = format_duration(Fraction(nanoseconds, NANOSECONDS))
    assert parse_duration_nanoseconds(text) == nanoseconds
    assert canonical_duration(text) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1", "1"),
        ("500m", "500m"),
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1.5", "1500m"),
        ("2k", "2k"),
        ("2000", "2k"),
        ("1e3", "1k"),
        ("1E3", "1k"),
        ("12e-3", "12m"),
        ("1E", "1E"),
        ("512Mi", "512Mi"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1536Ki", "1536Ki"),
        ("1025", "1025"),
        ("1.0009765625Ki", "1025"),
        ("0", "0"),
        ("0Gi", "0"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("+1", "1"),
        ("-1", "-1"),
    ],
)
def test_a_quantity_is_spelt_as_kubernetes_spells_it(text: str, canonical: str) -> None:
    assert canonical_quantity(text) == canonical


@pytest.mark.parametrize(
    "text", ["", "x", "1Kb", "1 Gi", "1..2", "Gi", "1KI", "1e", "1eE", "1gi", "--1", "1e999", "9Ei", "1" * 65]
)
def test_what_kubernetes_does_not_read_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        canonical_quantity(text)


@given(
    st.integers(0, 10**6),
    st.integers(0, 999),
    st.sampled_from(["m", "", "k", "M", "G", "Ki", "Mi", "Gi"]),
)
def test_the_canonical_quantity_has_the_same_value(whole: int, thousandths: int, suffix: str) -> None:
    text = f"{whole}.{thousandths:03d}{suffix}"
    canonical = canonical_quantity(text)
    assert parse_quantity(canonical) == parse_quantity(text)
    assert canonical_quantity(canonical) == canonical


def test_bytes_and_milli_units_are_rounded_up() -> None:
    assert quantity_bytes("1Gi") == 1 << 30
    assert quantity_bytes("1.5") == 2
    assert quantity_milli("0.5") == 500
    assert quantity_milli("100u") == 1


@pytest.mark.parametrize(
    ("text", "micro_usd", "canonical"),
    [
        ("0", 0, "0.00"),
        ("5", 5_000_000, "5.00"),
        ("5.0", 5_000_000, "5.00"),
        ("0.036", 36_000, "0.036"),
        ("0.1", 100_000, "0.10"),
        ("0.000001", 1, "0.000001"),
        ("999999999.999999", 999_999_999_999_999, "999999999.999999"),
        ("007", 7_000_000, "7.00"),
    ],
)
def test_an_amount_is_whole_micro_usd_and_keeps_two_decimals(text: str, micro_usd: int, canonical: str) -> None:
    assert parse_money(text) == micro_usd
    assert canonical_money(text) == canonical


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.", ".5", "1.0000001", "1000000000", "1e3", "1,0", "٣", "1\n"])
def test_other_texts_are_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="must be a decimal USD amount"):
        parse_money(text)


@given(st.integers(0, 999_999_999_999_999))
def test_an_amount_survives_its_text(micro_usd: int) -> None:
    assert parse_money(format_money(micro_usd)) == micro_usd


def test_a_negative_amount_can_be_shown_though_none_can_be_sent() -> None:
    assert format_money(-1_500_000) == "-1.50"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("2026-11-29T11:17:42Z", "2026-11-29T11:17:42Z"),
        ("2026-11-29T12:17:42.123456+01:00", "2026-11-29T11:17:42Z"),
    ],
)
def test_a_time_is_kept_in_whole_seconds_of_utc(text: str, canonical: str) -> None:
    assert canonical_time(text) == canonical


@pytest.mark.parametrize("text", ["", "now", "2026-11-29", "2026-11-29T11:17:42", "9999-12-31T23:59:59-14:00"])
def test_a_time_without_an_offset_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be an RFC 3339 time"):
        canonical_time(text)
