"""When a delay is over."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from holdfast.checkpoints.values import encode
from holdfast.engine.delays import wake_time

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("params", "given", "seconds"),
    [
        ({"seconds": 90}, {}, 90),
        ({"seconds": "1h 30m"}, {}, 5400),
        ({"seconds": "$.wait"}, {"wait": 5}, 5),
        ({"seconds": "$.wait"}, {"wait": "2d"}, 172800),
        ({"seconds": "$.nothing || 30s"}, {}, 30),
        ({"until": "2026-01-01T13:00:00+00:00"}, {}, 3600),
        ({"until": "2026-01-01T13:00:00"}, {}, 3600),
        ({"until": "2026-01-01T13:00:00+02:00"}, {}, -3600),
        ({"until": "$.at"}, {"at": "2026-01-02"}, 43200),
        ({"until": "$.at"}, {"at": encode(NOW + timedelta(days=1))}, 86400),
        ({"until": "$.at"}, {"at": encode(date(2026, 1, 2))}, 43200),
    ],
)
def test_a_delay_ends_when_it_says(params: dict[str, Any], given: Any, seconds: float) -> None:
    assert wake_time(params, given, NOW) == NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("params", "given", "complaint"),
    [
        ({"seconds": "$.wait"}, {}, r"the delay '\$.wait' gives None, which is no duration"),
        ({"seconds": "$.wait"}, {"wait": [5]}, r"gives \[5\], which is no duration"),
        ({"seconds": "$.wait"}, {"wait": "soon"}, "'soon' is not a duration"),
        ({"seconds": "$.wait"}, {"wait": 1e20}, "longer than a hundred years"),
        ({"seconds": "$.wait"}, {"wait": 10**400}, "longer than a hundred years"),
        ({"until": "$.at"}, {}, r"the delay until '\$.at' gives None, which is no ISO time"),
        ({"until": "$.at"}, {"at": "tomorrow"}, "gives 'tomorrow', which is no ISO time"),
        ({"until": "$.at"}, {"at": {"__set__": []}}, "gives None, which is no ISO time"),
        ({}, {}, "give either 'seconds' or 'until'"),
    ],
)
def test_what_gives_no_moment_is_refused(params: dict[str, Any], given: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        wake_time(params, given, NOW)
