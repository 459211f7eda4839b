"""Prepares a folder behind its wall, and a control group, for an attempt that is not known yet."""

import logging

from msgspec.structs import replace

from simpletuner_fleet.agent.guard.shim_client import ReadyWall
from simpletuner_fleet.agent.isolation.cgroups import Cgroups
from simpletuner_fleet.agent.isolation.walls import Walls

log = logging.getLogger(__name__)


class Spares:
    """Prepares walls and control groups for attempts to come. It blocks: call it in a thread."""

    def __init__(self, walls: Walls, cgroups: Cgroups) -> None:
        self._walls, self._cgroups = walls, cgroups

    def ready(self) -> ReadyWall | None:
        """Prepares one; returns None where that saves nothing, or is not possible."""
        ready = self._walls.ready()
        if ready is None:
            return None
        try:
            return replace(ready, cgroup=self._cgroups.spare_group(ready.folder))
        except OSError as error:
            log.warning("no control group could be prepared: %s", error)
            self.discard(ready)
            return None

    def discard(self, ready: ReadyWall) -> None:
        """Removes one of which no attempt was made, or whose attempt is over."""
        self._walls.discard(ready)
