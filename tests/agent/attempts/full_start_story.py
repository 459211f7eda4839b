"""How jobs are separated by a worker that starts while its disk is full. Run where the space is small; prints JSON."""

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from simpletuner_fleet.agent.attempts.retention import ROOM_FILES, KeepLimits, with_disk_room
from simpletuner_fleet.agent.isolation.walls import WallSurroundings, choose_walls
from simpletuner_fleet.agent.program import WorkerSettings, run_agent
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.core.worker_errors import StateDirError
from tests.agent.attempts.full_disk_story import fill_inodes, fill_pages

NO_ROOM = "no room"
PLENTY = KeepLimits(free_gb=0.0)
ABOUT = WallSurroundings(
    home="/root", environment={"PATH": os.environ["PATH"]}, pythons=(sys.executable,), grants=(), hidden=()
)


class Said(logging.Handler):
    """Tells when something was said at all."""

    def __init__(self) -> None:
        super().__init__()
        self.something = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.something.set()


async def chosen(state: StateDir, *, waits: bool = False) -> str:
    def choose() -> str:
        return str(choose_walls("auto", ABOUT, state.path, 1).kind)

    try:
        return await with_disk_room(state, PLENTY, choose, waits=waits, look_every_s=0.01)
    except StateDirError:
        return NO_ROOM


async def chosen_on_full(state: StateDir, fill: Callable[[Path], None]) -> str:
    filler = state.path / "filler"
    filler.mkdir()
    fill(filler)
    kind = await chosen(state)
    shutil.rmtree(filler)
    return kind


async def waited_for(state: StateDir) -> str:
    """Returns what is chosen once there is room, by one who has said that there is none."""
    said, filler = Said(), state.path / "filler"
    log = logging.getLogger("simpletuner_fleet.agent.attempts.retention")
    log.addHandler(said)
    log.propagate = False
    (state.path / "room").unlink()
    filler.mkdir()
    fill_pages(filler, 0)
    waiting = asyncio.create_task(chosen(state, waits=True))
    await said.something.wait()
    shutil.rmtree(filler)
    return await waiting


async def left_at_once(state: StateDir, **settings: Any) -> str:
    """Returns why a worker ends that has no room and nobody who would wait for it."""
    folder, filler = state.path / "another", state.path / "filler"
    StateDir.open(folder).close()
    filler.mkdir()
    fill_pages(filler, 0)
    about = WorkerSettings(
        url="http://127.0.0.1:1", token="x", token_file=None, name="another", work_dir=folder, **settings
    )
    try:
        return (await run_agent(about, dict(os.environ))).reason
    except StateDirError:
        return NO_ROOM
    finally:
        shutil.rmtree(filler)


async def story(state: StateDir) -> dict[str, list[str]]:
    lefts = (0, 1, 2, 3, 4, 6, 9, 15, 20, ROOM_FILES, ROOM_FILES + 9)
    return {
        "plenty": [await chosen(state)],
        "inodes": [await chosen_on_full(state, partial(fill_inodes, left=left)) for left in lefts],
        "kept room": [await chosen(state), await chosen_on_full(state, partial(fill_pages, left=0))],
        "waited": [await waited_for(state)],
        "left": [
            await left_at_once(state, persistent=False),
            await left_at_once(state, persistent=True, leave_after_s=60.0),
        ],
    }


if __name__ == "__main__":
    with StateDir.open(Path(sys.argv[1]) / "worker") as opened:
        print(json.dumps(asyncio.run(story(opened))))
