"""Finds and ends what a dead shim has left behind, by the attempt's control group, which none of its processes leaves.

Where there are no groups, it goes by the environment: every trainer's process carries its attempt there, unless it
clears that.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path

import msgspec

from simpletuner_fleet.agent.guard import shim_cgroup
from simpletuner_fleet.agent.guard.shim_client import ExitRecord
from simpletuner_fleet.agent.guard.shim_tree import NOT_SEEN
from simpletuner_fleet.core.jobs.job import EndReason

log = logging.getLogger(__name__)

ATTEMPT_TAG = "SIMPLETUNER_ATTEMPT_ID"
SWEEP_FOR_S = 10.0
SWEEP_PAUSE_S = 0.01
PROC = Path("/proc")


def end_rest(attempt_dir: Path) -> bool:
    """Ends what is left of an attempt that no shim guards any more; False where something of it does not die in time.

    Blocks: call it in a thread.
    """
    end_group(attempt_dir)
    sweep(attempt_dir.name, SWEEP_FOR_S)
    try:
        group = _group_of(attempt_dir)
        return not processes_of(attempt_dir.name) and not (group and shim_cgroup.is_populated(str(group)))
    except OSError as error:  # nothing was seen, which is not to say that nothing is there
        log.warning("what is left of attempt %s cannot be looked for: %s", attempt_dir.name, error.strerror)
        return False


async def nothing_left(attempt_dir: Path) -> None:
    """Returns when no process is left of an attempt without a shim; one that hangs in a driver may take for ever.

    Until then the attempt is not over: whatever came next would find its GPUs taken.
    """
    while not await asyncio.to_thread(end_rest, attempt_dir):
        pass


def left_record(attempt_dir: Path) -> tuple[ExitRecord, bool]:
    """Returns what a shim that is gone had recorded, and whether something of its attempt lives on.

    It left after its work, or it was killed and may have left processes.
    One that was killed between recording how the trainer ended and telling it has still recorded the truth.
    """
    recorded = _recorded(attempt_dir)
    lives_on = not end_rest(attempt_dir)
    if recorded is None:
        # One that was still there records what was just done to its trainer. Nobody ends well by being killed.
        late = _recorded(attempt_dir)
        recorded = late if late and late.exit_code == 0 else None
    lost = ExitRecord(reason=EndReason.SHIM_LOST, error="the trainer's supervisor was killed")
    return recorded or lost, lives_on


def _recorded(attempt_dir: Path) -> ExitRecord | None:
    """Waits a while for a descriptor where there is none for the moment: that would make a failure of any end."""
    give_up_at = time.monotonic() + SWEEP_FOR_S
    while True:
        try:
            return msgspec.json.decode((attempt_dir / "exit.json").read_bytes(), type=ExitRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        except OSError as error:
            if error.errno not in NOT_SEEN or time.monotonic() > give_up_at:
                return None
        time.sleep(SWEEP_PAUSE_S)


def end_group(attempt_dir: Path) -> bool:
    """Takes the attempt's control group away with all that is in there; whether anything was. Blocks."""
    try:
        group = _group_of(attempt_dir)
    except OSError as error:
        log.warning("the group of attempt %s cannot be looked for: %s", attempt_dir.name, error.strerror)
        return False
    if group is None:
        return False
    was_populated = shim_cgroup.is_populated(str(group))
    if not shim_cgroup.remove(str(group)):
        log.error("processes of attempt %s do not die: %s is not empty", attempt_dir.name, group)
        return was_populated
    with contextlib.suppress(OSError):
        (attempt_dir / shim_cgroup.NAME_FILE).unlink()
    return was_populated


def _group_of(attempt_dir: Path) -> Path | None:
    """Raises OSError where it cannot look."""
    try:
        group = Path((attempt_dir / shim_cgroup.NAME_FILE).read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        _raise_if_not_seen(error)
        return None
    return group if shim_cgroup.may_be_of(attempt_dir.name, group.name) else None


def processes_of(attempt_id: str) -> list[int]:
    """Returns the living processes tagged with this attempt. Those of other users cannot be read and are not ours.

    Raises OSError where it cannot look.
    """
    tag = f"{ATTEMPT_TAG}={attempt_id}".encode()
    return [
        pid for pid in _pids() if pid != os.getpid() and tag in _environ(pid).split(b"\0") and not _dead(pid)
    ]


def sweep(attempt_id: str, limit_s: float = SWEEP_FOR_S) -> int:
    """Kills until two looks in a row find none; returns how many it found. Blocks: call it in a thread."""
    give_up_at = time.monotonic() + limit_s
    killed_pids: set[int] = set()
    clean_looks = 0
    while clean_looks < 2 and time.monotonic() < give_up_at:
        try:
            pids = processes_of(attempt_id)
        except OSError:
            clean_looks = 0
            time.sleep(SWEEP_PAUSE_S)
            continue
        for pid in pids:
            _kill(pid)
        killed_pids.update(pids)
        clean_looks = 0 if pids else clean_looks + 1
        if clean_looks < 2:
            time.sleep(SWEEP_PAUSE_S)
    if clean_looks < 2:
        log.error("processes of attempt %s do not die, or cannot be looked for", attempt_id)
    return len(killed_pids)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdigit()]
    except OSError as error:
        _raise_if_not_seen(error)
        return []


def _environ(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError as error:
        _raise_if_not_seen(error)
        return b""


def _raise_if_not_seen(error: OSError) -> None:
    if error.errno in NOT_SEEN:
        raise error


def _dead(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError as error:
        _raise_if_not_seen(error)
        return True
    except IndexError:
        return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        log.warning("process %d may not be ended by this user", pid)
