"""When a Delay node ends."""

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.flows import selectors
from holdfast.flows.params import DelayParams, seconds_of
from holdfast.flows.shapes import is_object


def wake_time(params: dict[str, Any], input_data: Any, now: datetime) -> datetime:
    """The moment the delay is over; ValueError when the input does not give one."""
    delay = DelayParams.model_validate(params)
    if delay.until is not None:
        found = selectors.find(delay.until, input_data)
        if is_object(found):
            found = found.get("__datetime__") or found.get("__date__")
        try:
            moment = datetime.fromisoformat(str(found))
        except ValueError as error:
            raise ValueError(f"the delay until {delay.until!r} gives {found!r}, which is no ISO time") from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds: Any = delay.seconds
    if isinstance(seconds, str) and seconds.startswith("$"):
        seconds = selectors.find(seconds, input_data)
    if not isinstance(seconds, str | int | float):
        raise ValueError(f"the delay {delay.seconds!r} gives {seconds!r}, which is no duration")
    return now + timedelta(seconds=seconds_of(seconds))
