"""Three servers: two may be lost one after the other, and one that slept through both changes nothing when it wakes."""

import hashlib
import json
import signal
import time
from pathlib import Path

from tests.e2e.ha.several import Orchestrator, RunningJob, Several, term_at
from tests.e2e.processes import wait_until

LEFT_BEHIND = b"a file that no job has any more"
SWEPT = {"SIMPLETUNER_OBJECT_GRACE": "1", "SIMPLETUNER_OBJECT_DELETE_DELAY": "1"}


def test_one_that_was_frozen_through_two_changes_of_leader_promises_and_deletes_nothing(
    several: Several,
) -> None:
    world = several.world
    world.settings.update(SWEPT)
    sleeper = several.add().start()
    second, third = several.add().start(), several.add().start()
    world.url = third.url
    job = RunningJob(several)
    sleeper.running.signal(signal.SIGSTOP)
    try:
        first_heir, last_heir = sorted((second, third), key=lambda one: led_by(one, second, third))
        world.url = last_heir.url
        first_heir.running.kill()
        several.accepted_submit(world.command("true"), last_heir, within_s=20)
        term = term_at(last_heir)
        last_heir.running.signal(signal.SIGSTOP)
        left = leave_file(several.storage)
    finally:
        sleeper.running.signal(signal.SIGCONT)
    try:
        # It alone could act now, and for a moment believes that it leads: its sweep is long due.
        time.sleep(0.5)
        assert left.exists(), "a server whose term was over has deleted a file"
    finally:
        last_heir.running.signal(signal.SIGCONT)
    wait_until(lambda: {sleeper.role, last_heir.role} == {"leader", "follower"}, "one leads, one follows")
    assert term_at(last_heir) >= term
    first_heir.start()
    world.url = last_heir.url
    job.ends_undisturbed()
    wait_until(lambda: not left.exists(), "whoever leads sweeps")


def led_by(one: Orchestrator, *candidates: Orchestrator) -> bool:
    """Whether it is not the one that leads now, once one of them does."""
    wait_until(lambda: any(each.role == "leader" for each in candidates), "another one leads")
    return one.role != "leader"


def leave_file(storage: Path) -> Path:
    """A file of nobody that has stood on the list of deletions for long."""
    sha256 = hashlib.sha256(LEFT_BEHIND).hexdigest()
    file = storage / "objects" / sha256[:2] / sha256
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(LEFT_BEHIND)
    listed = storage / "sweep" / "to-be-deleted.json"
    listed.parent.mkdir(exist_ok=True)
    listed.write_text(json.dumps({sha256: 1.0}))
    return file
