"""How attempts end whose worker's disk is full. Run where the space is small; prints what was seen as JSON."""

import asyncio
import json
import logging
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.core.jobs.job import Outcome
from simpletuner_fleet.protocol.messages import JobSubmit
from tests.agent.attempts.test_attempts_left import OFFER, worker
from tests.agent.data.test_resume import a_server, resume

PAGE = 4096
OFFERS = {
    "command": replace(OFFER, config={"command": ["sleep", "60"]}),
    "simpletuner": replace(OFFER, config={"model_type": "lora"}, trainer="simpletuner"),
}
MOST_LEFT = {"inodes": 20, "pages": 8}


def fill_inodes(folder: Path, left: int) -> None:
    made: list[Path] = []
    try:
        while True:
            file = folder / str(len(made))
            file.touch()
            made.append(file)
    except OSError:
        for file in made[len(made) - left :]:
            file.unlink()


def fill_pages(folder: Path, left: int) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError:
            file.truncate(max(0, file.tell() - left * PAGE))


async def ends(state: StateDir, attempts: Attempts, offer: JobSubmit, fill: Callable[[Path], None]) -> str:
    """Returns how an attempt ends that is prepared and started on a disk that is filled."""
    turn, filler = turn_of(offer), state.path / "filler"
    filler.mkdir()
    fill(filler)
    attempts.prepare(offer)
    ending = await attempts.put_in_place(offer, lambda: True, lambda fetching: None)
    ending = ending or await attempts.start(offer, 60.0, boottime())
    if ending is None:
        attempts.stop(turn, 0.0, Outcome.LOST)
        ending = await attempts.ended(turn)
    shutil.rmtree(filler)
    await attempts.senders.metrics.flush(turn)  # which lets the senders begin
    await attempts.forget(turn)
    await asyncio.to_thread(state.remove_attempt, offer.attempt_id)
    return f"{ending.reason} {ending.blame}: {ending.error}"


async def story(state: StateDir) -> dict[str, list[str]]:
    seen: dict[str, list[str]] = {}
    async with a_server() as (_server, client), worker(state, client=client) as (attempts, _runner):
        for trainer, offer in OFFERS.items():
            for what, fill in (("inodes", fill_inodes), ("pages", fill_pages)):
                seen[f"{trainer} {what}"] = [
                    await ends(state, attempts, numbered(offer, left), partial(fill, left=left))
                    for left in range(MOST_LEFT[what])
                ]
        going_on = replace(numbered(OFFERS["command"], 99), resume=msgspec.to_builtins(resume()))
        seen["checkpoint"] = [await ends(state, attempts, going_on, partial(fill_pages, left=100))]
    return seen


def numbered(offer: JobSubmit, number: int) -> JobSubmit:
    return replace(offer, job_id=f"j_{number}", attempt_id=f"a_{number}")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with StateDir.open(Path(sys.argv[1]) / "worker") as opened:
        print(json.dumps(asyncio.run(story(opened))))
