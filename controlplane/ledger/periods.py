"""Spans of time that money is added up over: months of UTC, and what `?since=` and `?until=` say, pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.clock import parse_time
from controlplane.errors import ApiError, Reason

_AGO = re.compile(r"([0-9]{1,6})([smhdw])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_BEGINNING, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Range:
    """From `since` on and before `until`; None leaves that end open."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def bounds(self) -> tuple[datetime, datetime]:
        """Both ends as times, for SQL."""
        return self.since or _BEGINNING, self.until or _END


def parse_range(since: str, until: str, now: datetime) -> Range:
    """The range that two query parameters mean; 400 for words that are no time."""
    return Range(_moment("since", since, now), _moment("until", until, now))


def month_of(moment: datetime) -> tuple[datetime, datetime]:
    """The first moment of its month, and of the next one, in UTC."""
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


def _moment(parameter: str, text: str, now: datetime) -> datetime | None:
    if not text:
        return None
    ago = _AGO.match(text)
    try:
        if ago is not None:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        return parse_time(text)
    except (ValueError, OverflowError):
        raise ApiError(
            Reason.BAD_REQUEST,
            f'`{parameter}` must be how long ago ("30d", "12h"), a date ("2026-11-01") or an RFC 3339 time, '
            f'not "{text[:40]}"',
        ) from None
