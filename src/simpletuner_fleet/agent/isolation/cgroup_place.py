"""Finds this worker's place in the tree of control groups, and the controllers that it may delegate to its jobs."""

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.core.workers.job_groups import GroupLack

AGENT_GROUP = "agent"
"""Where the worker itself is: a group whose controllers are handed on may hold no process of its own."""
SERVICE_ENDS = ".service"
DELEGATED = ("trusted.delegate", "user.delegate")
"""How systemd marks a group that it leaves to others; root could write to all of them."""


class CgroupPlace(Struct, frozen=True, kw_only=True):
    """Describes the control group below which the groups of attempts are made."""

    folder: Path
    own: Path
    """Which the worker is in: that one, or `agent` below it."""
    systemd: bool = False

    def enabled(self) -> set[str]:
        return _words(self.folder / "cgroup.subtree_control")

    def could_have(self, controllers: Iterable[str]) -> tuple[set[str], GroupLack | None]:
        """Tells which of these jobs' groups could have, and what keeps them from the others; changes nothing."""
        wanted, had = set(controllers), self.enabled()
        more = (wanted - had) & _words(self.folder / "cgroup.controllers")
        lack = self._hindrance() if more else None
        if lack:
            return wanted & had, lack
        return wanted & (had | more), None if wanted <= had | more else GroupLack.NO_CONTROLLER

    def hand_on(self, controllers: Iterable[str]) -> GroupLack | None:
        """Delegates these controllers to the jobs' groups, and returns what prevents that.

        Where it must, this process leaves the group for one beside the jobs' groups.
        """
        missing = sorted(set(controllers) - self.enabled())
        if not missing:
            return None
        moves = self.own == self.folder and not self._is_root()
        leaf = self.folder / AGENT_GROUP
        try:
            if moves:
                leaf.mkdir(exist_ok=True)
                _write(leaf / "cgroup.procs", str(os.getpid()))
            _write(self.folder / "cgroup.subtree_control", " ".join(f"+{one}" for one in missing))
        except OSError:
            if moves:
                self._move_back(leaf)
            return GroupLack.NOT_DELEGATED
        return None

    def memory_bytes(self) -> int:
        """Returns the machine's memory, or what a group around this one leaves of it."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for folder in (self.folder, *self.folder.parents):
            limit = _words(folder / "memory.max")
            if limit and limit != {"max"}:
                total = min(total, int(limit.pop()))
        return total

    def _hindrance(self) -> GroupLack | None:
        if self.systemd and not _is_delegated(self.folder):
            return GroupLack.NOT_DELEGATED
        if not os.access(self.folder / "cgroup.subtree_control", os.W_OK):
            return GroupLack.NOT_DELEGATED
        if self._is_root() or self.own != self.folder:
            return None
        # Started anew by systemd, a worker is put into the service's own group, which then takes no process any more.
        if self.folder.name.endswith(SERVICE_ENDS):
            return GroupLack.OLD_SYSTEMD
        others = _words(self.folder / "cgroup.procs") - {str(os.getpid())}
        return GroupLack.SHARED if others else None

    def _move_back(self, leaf: Path) -> None:
        try:
            _write(self.folder / "cgroup.procs", str(os.getpid()))
            leaf.rmdir()
        except OSError:
            pass  # it stays where it is: jobs' groups are beside it all the same

    def _is_root(self) -> bool:
        """Returns whether this is the root of the whole tree, which may hold processes whatever it delegates.

        It alone has no type.
        """
        return not (self.folder / "cgroup.type").exists()


def find_place(proc: Path = Path("/proc"), run: Path = Path("/run")) -> CgroupPlace | GroupLack:
    try:
        mounts = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="replace")
        groups = (proc / "self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return GroupLack.NOT_MOUNTED
    mounted = _mounted(mounts)
    name = next((line[3:] for line in groups.splitlines() if line.startswith("0::/")), None)
    if mounted is None or name is None:
        return GroupLack.NOT_MOUNTED
    root, folder = mounted
    if not Path(name).is_relative_to(root):
        return GroupLack.NOT_MOUNTED
    own = folder / Path(name).relative_to(root)
    if not own.is_dir():
        return GroupLack.NOT_MOUNTED
    within = own.parent if own.name == AGENT_GROUP and own != folder else own
    if not os.access(within, os.W_OK):
        return GroupLack.READ_ONLY
    return CgroupPlace(folder=within, own=own, systemd=(run / "systemd/system").is_dir())


def _mounted(mounts: str) -> tuple[str, Path] | None:
    """Returns which part of the tree is mounted, and where."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            fields = before.split()
            return _plain(fields[3]), Path(_plain(fields[4]))
    return None


def _plain(field: str) -> str:
    """Decodes a field of mountinfo, where blanks and the like are written as octal numbers."""
    return field.encode().decode("unicode_escape")


def _is_delegated(folder: Path) -> bool:
    for name in DELEGATED:
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="ascii").split())
    except OSError:
        return set()


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
