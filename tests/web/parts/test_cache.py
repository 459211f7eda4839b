"""What is kept a while is made once for all who look, and made again when it is old."""

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.store import MemoryStore
from simpletuner_fleet.web.parts.cache import MOST_ENTRIES, TimedCache


class TurnedClock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at


def fleet_by(clock: TurnedClock) -> Fleet:
    return Fleet(MemoryStore(), FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), Policy())


async def test_it_is_made_again_only_when_it_is_old_and_for_each_fleet_and_thing() -> None:
    made: list[str] = []
    clock, kept = TurnedClock(), TimedCache[int](10.0)
    one, other = fleet_by(clock), fleet_by(clock)

    async def make() -> int:
        made.append("made")
        return len(made)

    assert [await kept.get(one, "j_1", make) for _ in range(3)] == [1, 1, 1]
    assert await kept.get(one, "j_2", make) == 2
    assert await kept.get(other, "j_1", make) == 3
    clock.at += 10.0
    assert await kept.get(one, "j_1", make) == 4
    clock.at -= 60.0
    assert await kept.get(one, "j_1", make) == 5


async def test_it_never_keeps_more_than_it_may() -> None:
    clock, kept = TurnedClock(), TimedCache[int](10.0)
    fleet = fleet_by(clock)
    asked: list[int] = []

    async def make() -> int:
        asked.append(1)
        return 0

    for number in range(MOST_ENTRIES + 1):
        await kept.get(fleet, f"j_{number}", make)
    await kept.get(fleet, f"j_{MOST_ENTRIES}", make)
    assert len(asked) == MOST_ENTRIES + 1
    await kept.get(fleet, "j_0", make)
    assert len(asked) == MOST_ENTRIES + 2
