"""Groups classes that differ only by owners whom no worker tells apart: they fit the same workers, in one queue.

The queue is a heap of where each class stood when it was last looked at. A class that moves back, as its owner uses
more or its first job leaves, is not noted: its position is corrected when it comes to the front. One that moves ahead
is noted at once. So finding who is next costs the same for ten people as for ten thousand, but for the logarithm of a
heap.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.placement.matching import Preference
from simpletuner_fleet.core.placement.ordering import Place
from simpletuner_fleet.core.workers.worker import Gpu

SLACK_IN_LINE = 64
Standing = tuple[float, Place, str]
"""Of a class: what its owner has used where that counts, the place of its first job, and the class itself."""


class Room(Struct, frozen=True):
    """Holds what an open worker would give to a job as it is now, and how much it is preferred for that."""

    gpus: tuple[Gpu, ...]
    preference: Preference


NO_ROOM = Room((), (True, 0, 0, 0.0))
"""Known by its identity: the worker has too few GPUs free for such a job."""


class Alike:
    __slots__ = ("classes", "fitting", "line", "noted", "open", "requires")

    def __init__(self, requires: Requirements) -> None:
        self.requires = requires
        """Of all of them; nobody is their owner, or the one that workers tell apart."""
        self.classes: set[str] = set()
        self.fitting: set[str] = set()
        self.open: dict[str, Room | None] = {}
        """Of those that fit, the workers that take offers, with their room.

        None: it was not asked for since the worker, what it holds, or what teams may use has changed.
        """
        self.line: list[Standing] = []
        self.noted: dict[str, Standing] = {}
        """Of each class in which somebody waits, its very entry in the line; equal ones elsewhere are left over."""

    def note(self, standing: Standing) -> None:
        """Notes that this class has come, or may have moved ahead."""
        known = self.noted.get(standing[2])
        if known is None or standing < known:
            self.noted[standing[2]] = standing
            heappush(self.line, standing)
            if len(self.line) > 2 * len(self.noted) + SLACK_IN_LINE:
                self.line = [one for one in self.line if self.noted.get(one[2]) is one]
                heapify(self.line)

    def forget(self) -> None:
        """Forgets all positions that were noted."""
        self.line.clear()
        self.noted.clear()

    def first(self, standing_of: Callable[[str], Standing | None]) -> Standing | None:
        """Returns the class that is next; looks a class up only when it is at the front."""
        while self.line:
            entry = self.line[0]
            class_id = entry[2]
            if self.noted.get(class_id) is not entry:
                heappop(self.line)
                continue
            present = standing_of(class_id)
            if present == entry:
                return entry
            if present is None:
                heappop(self.line)
                del self.noted[class_id]
            else:
                self.noted[class_id] = present
                heapreplace(self.line, present)
        return None

    def take(self) -> Standing:
        """Removes the class that `first` has just returned, until `put_back`."""
        return heappop(self.line)

    def put_back(self, taken: Standing) -> None:
        if self.noted.get(taken[2]) is taken:
            heappush(self.line, taken)
