"""When a run may be carried over: nothing active, every branch at a boundary."""

import asyncio
from collections.abc import Awaitable

import pytest

from holdfast.engine.gate import Gate


class Door:
    """A gate with a switch for parking, and a count of how often it settled."""

    def __init__(self) -> None:
        self.parking = False
        self.settled = 0
        self.gate = Gate(lambda: self.parking, self._settle)

    def _settle(self) -> None:
        self.settled += 1


async def turns() -> None:
    """Lets everything that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_gate_is_quiet_when_the_last_unit_has_left() -> None:
    door = Door()
    door.gate.enter()
    door.gate.enter()

    door.gate.leave()
    assert (door.gate.quiet, door.settled) == (False, 0)
    door.gate.leave()
    assert (door.gate.quiet, door.settled) == (True, 1)


async def test_a_boundary_is_no_obstacle_as_long_as_nobody_wants_to_park() -> None:
    door = Door()
    door.gate.enter()

    await door.gate.boundary()

    assert (door.gate.quiet, door.gate.parked, door.settled) == (False, 0, 0)


async def test_a_unit_stays_at_the_boundary_for_ever_and_goes_on_only_if_it_is_cancelled() -> None:
    door = Door()
    door.parking = True
    door.gate.enter()
    waiting = asyncio.create_task(door.gate.boundary())
    await turns()
    assert (door.gate.quiet, door.gate.parked, door.settled) == (True, 1, 1)

    waiting.cancel()
    await turns()

    assert waiting.cancelled()
    assert (door.gate.quiet, door.gate.parked) == (False, 0)


async def test_a_rest_lets_the_run_be_carried_over_and_counts_again_afterwards() -> None:
    door = Door()
    door.gate.enter()

    async with door.gate.rest():
        assert (door.gate.quiet, door.gate.resting, door.settled) == (True, 1, 1)
    assert (door.gate.quiet, door.gate.resting) == (False, 0)


async def value(of: int, after: Awaitable[None] | None = None) -> int:
    if after is not None:
        await after
    return of


async def test_results_of_a_gathering_are_in_the_order_of_the_works() -> None:
    door = Door()
    door.gate.enter()
    first = asyncio.get_running_loop().create_future()

    gathering = asyncio.create_task(door.gate.gather([value(1, first), value(2), value(3)]))
    await turns()
    assert not gathering.done()
    first.set_result(None)

    assert await gathering == [1, 2, 3]
    assert (door.gate.quiet, door.settled) == (False, 0)
    assert await door.gate.gather([value(4)]) == [4]
    assert await door.gate.gather([]) == list[int]()


async def test_a_gathering_is_quiet_when_all_of_it_is_parked_and_not_before() -> None:
    door = Door()
    door.parking = True
    door.gate.enter()
    busy = asyncio.get_running_loop().create_future()

    async def work(before: Awaitable[None] | None) -> int:
        await value(0, before)
        await door.gate.boundary()
        return 1

    gathering = asyncio.create_task(door.gate.gather([work(None), work(busy), work(None)]))
    await turns()
    assert (door.gate.quiet, door.gate.parked) == (False, 2)
    busy.set_result(None)
    await turns()
    assert (door.gate.quiet, door.gate.parked, door.settled) == (True, 3, 1)

    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathering
    # The caller goes on with the unit it came with.
    door.gate.leave()
    assert door.gate.quiet


async def test_a_gathering_with_some_parked_and_some_done_is_quiet() -> None:
    door = Door()
    door.gate.enter()

    async def work(park: bool) -> int:
        door.parking = park
        await door.gate.boundary()
        return 1

    gathering = asyncio.create_task(door.gate.gather([work(False), work(True)]))
    await turns()

    assert (door.gate.quiet, door.gate.parked, door.settled) == (True, 1, 1)
    gathering.cancel()
    await turns()
    assert not door.gate.quiet


async def test_the_first_failure_is_raised_when_all_have_ended() -> None:
    door = Door()
    door.gate.enter()
    late = asyncio.get_running_loop().create_future()
    ended: list[int] = []

    async def fails(number: int, after: Awaitable[None] | None = None) -> int:
        await value(0, after)
        ended.append(number)
        raise ValueError(f"work {number}")

    gathering = asyncio.create_task(door.gate.gather([fails(1, late), fails(2), value(3)]))
    await turns()
    assert not gathering.done()
    late.set_result(None)

    with pytest.raises(ValueError, match="work 1"):
        await gathering
    assert ended == [2, 1]
    assert not door.gate.quiet
    door.gate.leave()
    assert door.gate.quiet


async def test_a_gathering_that_is_cancelled_before_its_works_have_begun_leaves_nothing_behind() -> None:
    door = Door()
    door.gate.enter()
    begun: list[int] = []

    async def work() -> int:
        begun.append(1)
        return 1

    # A time limit that is over already comes before the first turn of the works.
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await door.gate.gather([work(), work(), work()])

    assert begun == []
    assert not door.gate.quiet
    door.gate.leave()
    assert door.gate.quiet
