"""Manages the control groups (cgroup v2) of this worker's attempts: what is available here, one group each, its end."""

import logging
import os
import subprocess
import time
import zlib
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.agent.guard import shim_cgroup
from simpletuner_fleet.agent.isolation.cgroup_place import CgroupPlace, find_place
from simpletuner_fleet.agent.state_dir import AttemptDir
from simpletuner_fleet.core.worker_errors import JobLimitUnavailable
from simpletuner_fleet.core.workers import job_groups
from simpletuner_fleet.core.workers.job_groups import GroupLack

log = logging.getLogger(__name__)

TRIAL_S = 10.0
MOST_PIDS = 32_768
"""Threads count, too: eight ranks with sixteen data loaders of a hundred threads each have less than half of it."""
LEAST_KEPT_BYTES, MOST_KEPT_BYTES = 512 << 20, 4 << 30
KEPT_SHARE = 0.02
"""What the machine keeps for itself of its memory, so that a job that takes too much ends before the worker does."""


class JobLimits(Struct, frozen=True, kw_only=True):
    """Holds the limits for jobs that the worker's owner has asked for.

    None takes the default where it can be had, 0 sets none.
    """

    memory_gb: float | None = None
    pids: int | None = None


class Cgroups:
    """Makes and ends the control groups of this worker's attempts. It blocks: call it in a thread."""

    def __init__(
        self,
        folder: Path | None,
        lack: GroupLack | None,
        *,
        memory_bytes: int | None = None,
        pids: int | None = None,
    ) -> None:
        """`lack` is what keeps this worker from having more; limits that are None are not set."""
        self._folder = folder
        self.lack = lack
        self.memory_bytes = memory_bytes
        self.pids = pids

    @property
    def parts(self) -> str:
        """Returns what is available, in the words of the label by which jobs can ask for it."""
        if self._folder is None:
            return job_groups.NOTHING
        had = ["kill", *(["memory"] if self.memory_bytes else []), *(["pids"] if self.pids else [])]
        return "+".join(had)

    def labels(self) -> dict[str, str]:
        labels = {job_groups.HAD: self.parts}
        if self.memory_bytes:
            labels[job_groups.MEMORY] = f"{self.memory_bytes / 1e9:.1f}"
        if self.pids:
            labels[job_groups.PIDS] = str(self.pids)
        if self.lack:
            labels[job_groups.LACKS] = self.lack.value
        return labels

    def sentence(self) -> str:
        """Says what jobs get here, and what they do not and why."""
        return job_groups.sentence(self.labels())

    def group_for(self, attempt: AttemptDir) -> str:
        """Makes the attempt's group with its limits, unless its folder was a spare's, which has one.

        Returns '' where there are none here. Raises OSError.
        """
        note = attempt.path / shim_cgroup.NAME_FILE
        had = note.read_text(encoding="utf-8", errors="replace") if note.exists() else ""
        if had and os.path.isdir(had):
            return had
        worker = zlib.crc32(os.fsencode(attempt.path.parent))
        return self._made(shim_cgroup.group_name(attempt.attempt_id, worker), note)

    def spare_group(self, folder: Path) -> str:
        """Makes the group of whichever attempt this folder becomes; '' where there are none here. Raises OSError."""
        return self._made(shim_cgroup.spare_name(folder.name), folder / shim_cgroup.NAME_FILE)

    def _made(self, name: str, note: Path) -> str:
        if self._folder is None:
            return ""
        group = self._folder / name
        group.mkdir(mode=0o755, exist_ok=True)
        # First of all: whoever comes after us ends what is in there by this.
        note.write_text(str(group), encoding="utf-8")
        if self.memory_bytes:
            _write(group / "memory.max", str(self.memory_bytes))
            # A tree that has lost one process to the kernel stands still, or ends with whatever error comes of it.
            _write(group / "memory.oom.group", "1")
        if self.pids:
            _write(group / "pids.max", str(self.pids))
        return str(group)

    def trial(self) -> GroupLack | None:
        """Puts a process into a group like those of attempts and ends it by the group. Returns what prevents that."""
        assert self._folder is not None
        group = self._folder / shim_cgroup.group_name(f"trial-{os.getpid()}")
        try:
            group.mkdir()
            if not (group / "cgroup.kill").exists():
                return GroupLack.OLD_KERNEL
            script = f"echo 0 > '{group}/cgroup.procs' && exec sleep {TRIAL_S * 2:g}"
            child = subprocess.Popen(
                ["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}
            )
            return None if _dies_by(group, child) else GroupLack.REFUSED
        except OSError as error:
            log.debug("no control group for a trial: %s", error)
            return GroupLack.READ_ONLY
        finally:
            shim_cgroup.remove(str(group), within_s=1.0)


NO_CGROUPS = Cgroups(None, None)


def choose_cgroups(
    limits: JobLimits, place: CgroupPlace | GroupLack | None = None, *, change: bool = True
) -> Cgroups:
    """Returns what this machine lets a worker have.

    Raises JobLimitUnavailable where a limit was asked for and cannot be had.
    With `change` this process may move into a group of its own beside those of jobs: call it before others are started.
    Without it nothing changes for longer than a trial, and what a start would have is told.
    """
    where = find_place() if place is None else place
    had = _had(limits, where, change)
    asked = [("--job-memory-gb", limits.memory_gb, had.memory_bytes), ("--job-pids", limits.pids, had.pids)]
    for flag, asked_for, got in asked:
        if asked_for and not got:
            why = had.lack.sentence if had.lack else "the controller is missing"
            raise JobLimitUnavailable(f"{flag} {asked_for:g} cannot be held on this machine: {why}.")
    return had


def _had(limits: JobLimits, place: CgroupPlace | GroupLack, change: bool) -> Cgroups:
    if isinstance(place, GroupLack):
        return Cgroups(None, place)
    problem = Cgroups(place.folder, None).trial()
    if problem:
        return Cgroups(None, problem)
    wanted = [
        controller
        for controller, asked_for in (("memory", limits.memory_gb), ("pids", limits.pids))
        if asked_for is None or asked_for > 0
    ]
    had, lack = place.could_have(wanted)
    failed = place.hand_on(had) if change else None
    if failed:
        had, lack = set(wanted) & place.enabled(), failed
    return Cgroups(
        place.folder,
        lack,
        memory_bytes=_memory(limits.memory_gb, place) if "memory" in had else None,
        pids=_pids(limits.pids) if "pids" in had else None,
    )


def _dies_by(group: Path, child: subprocess.Popen[bytes]) -> bool:
    give_up_at = time.monotonic() + TRIAL_S
    try:
        while not shim_cgroup.is_populated(str(group)):
            if child.poll() is not None or time.monotonic() > give_up_at:
                return False
            time.sleep(shim_cgroup.LOOK_S)
        shim_cgroup.end_all(str(group))
        return child.wait(TRIAL_S) < 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        child.kill()
        child.wait()


def _memory(asked_gb: float | None, place: CgroupPlace) -> int:
    if asked_gb:
        return int(asked_gb * 1e9)
    total = place.memory_bytes()
    return total - int(min(MOST_KEPT_BYTES, max(LEAST_KEPT_BYTES, total * KEPT_SHARE)))


def _pids(asked: int | None) -> int:
    if asked:
        return asked
    try:
        most = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return MOST_PIDS
    return min(MOST_PIDS, most // 2)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
