"""Remembers across starts when this machine was said to end; whoever said so wrongly is not believed for a while.

Without this, anybody who can answer in the metadata service's place could keep a worker from working for good.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from simpletuner_fleet.agent.guard.shim_client import boot_id, boottime
from simpletuner_fleet.agent.state_dir import write_whole

OVERDUE_S = 60.0
"""A machine that is still there so long after its end was to be has not been taken away."""
DISTRUST_S = 3600.0


class ToldEnd(Struct, frozen=True, kw_only=True):
    """Records an announced end of this machine: by whom, and for when. All times are of this boot's clock."""

    boot: str
    source: str
    deadline: float


class RememberedEnd:
    def __init__(self, folder: Path, boot: str | None = None) -> None:
        self._file = folder / "told_end.json"
        self._boot = boot_id() if boot is None else boot
        self._known = self._load()

    def expected_s(self) -> float:
        """Returns how long the machine may still be taken away as it was told; 0 where nothing is expected."""
        return max(0.0, self._known.deadline + OVERDUE_S - boottime()) if self._known else 0.0

    def believes(self, source: str) -> bool:
        known = self._known
        if known is None or known.source != source:
            return True
        return not 0 <= boottime() - (known.deadline + OVERDUE_S) < DISTRUST_S

    def note(self, source: str, deadline: float) -> None:
        """Records the notice. It blocks for the disk, briefly."""
        self._known = ToldEnd(boot=self._boot, source=source, deadline=deadline)
        write_whole(self._file, msgspec.json.encode(self._known))

    def _load(self) -> ToldEnd | None:
        try:
            known = msgspec.json.decode(self._file.read_bytes(), type=ToldEnd)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return known if known.boot == self._boot else None
