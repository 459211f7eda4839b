"""Tells what control groups do for a worker's jobs: in labels, which jobs can ask for, and in a sentence."""

from collections.abc import Mapping
from enum import StrEnum

from simpletuner_fleet.core.marks import N_

HAD, LACKS, MEMORY, PIDS = "cgroup", "cgroup_lacks", "job_memory_gb", "job_pids"
"""The labels: `kill`, `memory` and `pids` with plus signs between them, or `none`; why there is no more; the limits."""
NOTHING = "none"
Piece = tuple[str, dict[str, str]]


class GroupLack(StrEnum):
    """Names what keeps a worker from doing more for its jobs with control groups."""

    NOT_MOUNTED = "not-mounted"
    READ_ONLY = "read-only"
    OLD_KERNEL = "old-kernel"
    REFUSED = "refused"
    NO_CONTROLLER = "no-controller"
    NOT_DELEGATED = "not-delegated"
    OLD_SYSTEMD = "old-systemd"
    SHARED = "shared"

    @property
    def sentence(self) -> str:
        return LACKING[self]


LACKING = {
    GroupLack.NOT_MOUNTED: N_("there is no cgroup v2 on this machine"),
    GroupLack.READ_ONLY: N_("this worker may make no groups below its own"),
    GroupLack.OLD_KERNEL: N_("the kernel is older than 5.14"),
    GroupLack.REFUSED: N_("a process that was put into a group on trial could not be ended by it"),
    GroupLack.NO_CONTROLLER: N_("the controller is not there"),
    GroupLack.NOT_DELEGATED: N_("the controller is not delegated"),
    GroupLack.OLD_SYSTEMD: N_("it needs the unit of 'simpletuner service install' and systemd 254 or newer"),
    GroupLack.SHARED: N_("other programs are in the same group"),
}


def open_pieces(labels: Mapping[str, str]) -> tuple[list[Piece], Piece | None]:
    """Returns what jobs get, and why not more, with blanks to fill; nothing if the worker does not say."""
    had = labels.get(HAD, "")
    why = next((one.sentence for one in GroupLack if one == labels.get(LACKS)), None)
    if had in ("", NOTHING):
        return [(N_("none"), {})] if had else [], (why, {}) if why else None
    memory, pids = labels.get(MEMORY), labels.get(PIDS)
    pieces: list[Piece] = [(N_("kill"), {}) if memory or pids else (N_("kill only"), {})]
    pieces.append(
        (N_("at most %(gb)s GB of memory for each job"), {"gb": memory})
        if memory
        else (N_("no memory limit"), {})
    )
    pieces.append(
        (N_("at most %(count)s processes and threads for each job"), {"count": pids})
        if pids
        else (N_("no process limit"), {})
    )
    return pieces, (why, {}) if why else None


def sentence(labels: Mapping[str, str]) -> str:
    pieces, why = open_pieces(labels)
    facts = ", ".join(text % blanks for text, blanks in pieces)
    return f"{facts}: {why[0]}" if why else facts


def lacks_something(labels: Mapping[str, str]) -> bool:
    return bool(labels.get(LACKS))
