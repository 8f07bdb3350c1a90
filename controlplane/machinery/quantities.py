"""Durations, quantities, times and money: text on the wire, integers inside, one canonical spelling each.

Clients may spell a value as they like (`90s`, `1m30s`); the stored object holds the canonical text, so a value that was
sent again counts as no change. Durations are Go's, quantities are those of Kubernetes, money is decimal USD. The
annotated types at the end are what the models of kinds are written with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from controlplane.clock import format_time, parse_time
from controlplane.machinery.problems import problem

NANOSECONDS = 1_000_000_000
"""In a second."""
MICRO_USD = 1_000_000
"""In a dollar."""

_TEXT_LENGTH_MAX = 64
"""Longer texts are no quantity anybody writes, and exact arithmetic on them is slow."""
_DURATION_NANOSECONDS_MAX = (1 << 63) - 1
"""Go keeps durations in signed 64 bits."""
_DURATION_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": NANOSECONDS,
    "m": 60 * NANOSECONDS,
    "h": 3_600 * NANOSECONDS,
}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_QUANTITY = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-zA-Z]{0,2}|[eE][+-]?[0-9]{1,3})")
_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1_000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_QUANTITY_MAX = 1 << 63
"""Kubernetes keeps quantities in signed 64 bits."""
_MONEY = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?")


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `300s`, `1h30m` or `0.5s`; `ValueError` when it is none or is negative."""
    return parse_duration_nanoseconds(text) / NANOSECONDS


def parse_duration_nanoseconds(text: str) -> int:
    """Nanoseconds of a Go duration; finer parts are dropped as Go drops them."""
    if text == "0":
        return 0
    total, end = Fraction(0), 0
    while part := _DURATION_PART.match(text, end):
        total += Fraction(part[1]) * _DURATION_UNITS[part[2]]
        end = part.end()
    if end == 0 or end != len(text) or end > _TEXT_LENGTH_MAX or total > _DURATION_NANOSECONDS_MAX:
        raise ValueError('must be a duration such as "300s", "1h30m" or "0.5s"')
    return int(total)


def format_duration(seconds: float | Fraction) -> str:
    """The canonical text of a duration: seconds, with a fraction only where there is one (`5400s`, `0.5s`)."""
    whole, nanoseconds = divmod(round(seconds * NANOSECONDS), NANOSECONDS)
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return f"{whole}{fraction}s"


def canonical_duration(text: str) -> str:
    """The canonical spelling of a duration; `ValueError` when it is none."""
    if text.endswith("s") and text[:-1].isdigit() and text.isascii() and len(text) < 10 and text[0] != "0":
        return text  # "300s", what clients nearly always send
    return format_duration(Fraction(parse_duration_nanoseconds(text), NANOSECONDS))


def parse_quantity(text: str) -> Fraction:
    """The exact value of a Kubernetes quantity such as `500m`, `1.5` or `512Mi`; `ValueError` when it is none."""
    return _quantity_parts(text)[0]


def _quantity_parts(text: str) -> tuple[Fraction, bool]:
    """The value, and whether its suffix was binary."""
    found = _QUANTITY.fullmatch(text)
    suffix = found[3] if found else ""
    if found is None or len(text) > _TEXT_LENGTH_MAX:
        raise _no_quantity()
    number = Fraction(found[2]) * (-1 if found[1] == "-" else 1)
    if suffix in _BINARY:
        value = number * _BINARY[suffix]
    elif suffix in _DECIMAL:
        value = number * _DECIMAL[suffix]
    elif suffix[0] in "eE" and len(suffix) > 1 and suffix[-1].isdigit():
        value = number * Fraction(10) ** int(suffix[1:])
    else:
        raise _no_quantity()
    if abs(value) >= _QUANTITY_MAX:
        raise ValueError("must be smaller than 8Ei")
    return value, suffix in _BINARY


def quantity_bytes(text: str) -> int:
    """A quantity of memory or disk in bytes, rounded up."""
    return -int(-parse_quantity(text) // 1)


def quantity_milli(text: str) -> int:
    """A quantity of CPUs in thousandths, rounded up."""
    return -int(-parse_quantity(text) * 1_000 // 1)


def canonical_quantity(text: str) -> str:
    """The canonical spelling Kubernetes gives a quantity: the largest suffix of its family without a fraction.

    Values finer than 10⁻⁹ are rounded up, and a binary quantity below 1024 is written in the decimal family.
    """
    value, binary = _quantity_parts(text)
    if value == 0:
        return "0"
    if binary and abs(value) >= 1024 and value.denominator == 1:
        for suffix, factor in reversed(_BINARY.items()):
            if value % factor == 0:
                return f"{value // factor}{suffix}"
        return str(value)
    value = Fraction(-(-value * 10**9 // 1), 10**9)
    return next(
        f"{value / factor}{suffix}"
        for suffix, factor in reversed(_DECIMAL.items())
        if (value / factor).denominator == 1
    )


def parse_money(text: str) -> int:
    """Micro-USD of a decimal string such as `5` or `0.036`; `ValueError` when it is none."""
    found = _MONEY.fullmatch(text)
    if found is None:
        raise ValueError('must be a decimal USD amount in quotes such as "5.00", with at most 6 decimals')
    return int(found[1]) * MICRO_USD + int((found[2] or "").ljust(6, "0"))


def format_money(amount_micro_usd: int) -> str:
    """The decimal string of an amount, with at least two decimals (`0.036`, `5.00`)."""
    sign = "-" if amount_micro_usd < 0 else ""
    whole, micro = divmod(abs(amount_micro_usd), MICRO_USD)
    decimals = f"{micro:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"


def canonical_money(text: str) -> str:
    """The canonical spelling of an amount; `ValueError` when it is none."""
    return format_money(parse_money(text))


def canonical_time(text: str) -> str:
    """The canonical spelling of an RFC 3339 time: whole seconds with `Z`; `ValueError` when it is none."""
    try:
        return format_time(parse_time(text))
    except (ValueError, OverflowError):
        raise ValueError('must be an RFC 3339 time such as "2026-11-29T11:17:42Z"') from None


def _no_quantity() -> ValueError:
    return ValueError('must be a quantity such as "500m", "2" or "512Mi"')


def _canonical(convert: Callable[[str], str]) -> Callable[[str], str]:
    """`convert` as a validator whose ValueError becomes the message of a cause."""

    def validate(text: str) -> str:
        try:
            return convert(text)
        except ValueError as error:
            raise problem(str(error)) from None

    return validate


def _number_as_text(value: object) -> object:
    """Quantities may be JSON numbers, as in Kubernetes (`cpu: 2`)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return value


def _not_negative(text: str) -> str:
    if text.startswith("-"):
        raise problem("must not be negative")
    return text


def _within(minimum: str, maximum: str) -> Callable[[str], str]:
    least, most = parse_duration_nanoseconds(minimum), parse_duration_nanoseconds(maximum)

    def validate(text: str) -> str:
        if not least <= parse_duration_nanoseconds(text) <= most:
            raise problem(f"must be between {minimum} and {maximum}")
        return text

    return validate


def duration_between(minimum: str, maximum: str) -> tuple[AfterValidator, WithJsonSchema]:
    """Metadata for `Annotated[Duration, *duration_between("1s", "24h")]`: bounds, inclusive, also in the schema."""
    schema = {"type": "string", "format": "go-duration", "x-nodus-minimum": minimum, "x-nodus-maximum": maximum}
    return AfterValidator(_within(minimum, maximum)), WithJsonSchema(schema)


Duration = Annotated[
    str, AfterValidator(_canonical(canonical_duration)), WithJsonSchema({"type": "string", "format": "go-duration"})
]
"""A Go duration, kept in seconds (`300s`)."""

Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    AfterValidator(_canonical(canonical_quantity)),
    AfterValidator(_not_negative),
    WithJsonSchema({"type": "string", "format": "quantity"}),
]
"""A Kubernetes quantity that is not negative, in its canonical spelling."""

Time = Annotated[
    str, AfterValidator(_canonical(canonical_time)), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""An RFC 3339 time, in whole seconds of UTC."""

Money = Annotated[
    str,
    AfterValidator(_canonical(canonical_money)),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})?$"}),
]
"""Decimal USD in a string, with at least two decimals."""

SignedMoney = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^-?[0-9]{1,12}(\.[0-9]{1,6})?$"})]
"""Decimal USD in a string that may be negative; for what only the server writes."""
