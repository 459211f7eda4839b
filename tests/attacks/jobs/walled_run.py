"""A worker's walls with two jobs behind them, as a program of its own, so that it can run as any user.

    python walled_run.py FOLDER WISH SCRIPT [--job-path PATH:ro|rw]…

Starts a job with a secret, then SCRIPT as a second one that is told where everything is, and prints what became of it as
JSON. The folder holds what a real worker's does: a token, other attempts, a cached dataset.
"""

import argparse
import asyncio
import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.guard.orphans import ATTEMPT_TAG
from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import Order, ReadyWall
from simpletuner_fleet.agent.isolation.places import JobPath
from simpletuner_fleet.agent.isolation.undumpable import become_undumpable
from simpletuner_fleet.agent.isolation.walls import Walls, WallSurroundings, choose_walls
from simpletuner_fleet.agent.state_dir import AttemptDir, StateDir
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.settings.values import job_paths
from simpletuner_fleet.trainers.contract import Launch
from simpletuner_fleet.trainers.environment import without_secrets

SECRET = "canary-of-the-victim"
VICTIM = """
import os, pathlib, sys, time
pathlib.Path('output/secret.txt').write_text(os.environ['VICTIMS_SECRET'])
print('canary-in-the-log', flush=True)
pathlib.Path('output/ready').touch()
time.sleep(600)
"""


def hold_a_key() -> None:
    """In the session of this process, as a log-in or a service manager leaves them there."""
    libc = ctypes.CDLL(None)
    add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
    libc.syscall(keyctl, 1, None)
    libc.syscall(add_key, b"user", b"canary", b"canary-of-the-session", ctypes.c_size_t(21), -3)


def zygote_of(runner: Runner) -> int:
    zygote = runner._starter._zygote
    assert zygote is not None
    return zygote.process.pid


async def run(folder: Path, asked: str, script: str, grants: list[tuple[str, bool]]) -> dict[str, Any]:
    become_undumpable()
    hold_a_key()
    home = Path(os.environ["HOME"])
    with StateDir.open(folder / "state") as state:
        (state.path / "worker_token").write_text("canary-of-the-worker")
        cache = DataCache.open(state.path / "data-cache", 10**9)
        about = WallSurroundings(
            home=str(home),
            environment=without_secrets(os.environ),
            pythons=(sys.executable,),
            grants=tuple(JobPath(path, writable) for path, writable in grants),
            hidden=(str(state.path), str(home / ".simpletuner")),
        )
        walls = walls_of(asked, about, state.path)
        async with Runner(key=state.shim_key(), walls=walls) as runner:
            victim = state.create_attempt(f"a_victim_{os.getpid()}")
            order = prepared(walls, victim, None, VICTIM, {"VICTIMS_SECRET": SECRET})
            held = await runner.go(await runner.hold(await runner.take_bare(), order))
            while not (victim.output_dir / "ready").exists():
                assert held.pid, await held.wait()
                await asyncio.sleep(0.01)
            shim = await runner.take()
            thief = state.attempt(f"a_thief_{os.getpid()}")
            moved_in = shim.ready is not None and walls.move_in(shim.ready, thief)
            assert moved_in == (walls.kind in ("user", "namespace"))
            state.create_attempt(thief.attempt_id)
            view = cached(cache, thief)
            facts = {
                "state": str(state.path),
                "agent": os.getpid(),
                "zygote": zygote_of(runner),
                "victim": held.pid,
                "victims": str(victim.path),
                "own": str(thief.path),
                "view": str(view),
                "home": str(home),
                "euid": os.geteuid(),
            }
            order = prepared(walls, thief, view.parent, script, {"FACTS": json.dumps(facts)}, shim.ready)
            running = await runner.go(await runner.hold(shim, order))
            ended = await running.wait()
            still_alive = is_there(held.pid)
            held.stop(0)
            await held.wait()
            objects = [path.read_text() for path in cache.folder.glob("objects/*/*")]
            await running.release()
            await held.release()
        cache.close()
    return {
        "kind": walls.name,
        "exit": ended.exit_code,
        "signal": ended.signal,
        "error": ended.error,
        "output": thief.output_log.read_text(errors="replace") if thief.output_log.exists() else "",
        "victim_alive": still_alive,
        "objects": objects,
        "forged": [str(path) for path in state.path.rglob("*") if was_forged(path)],
    }


def walls_of(asked: str, about: WallSurroundings, folder: Path) -> Walls:
    """As a worker chooses them; `landlock` also where namespaces would be chosen before it."""
    if asked != "landlock":
        return choose_walls(asked, about, folder, 2)
    walls = Walls("landlock", about, folder, 2)
    problem = walls.problem()
    if problem:
        raise SystemExit(f"no landlock: {problem}")
    return walls


def was_forged(path: Path) -> bool:
    """Of the worker's own files; what a job writes in its own folders is its business."""
    return path.is_file() and "job" not in path.parts and path.read_bytes() == b"forged"


def is_there(pid: int | None) -> bool:
    return os.path.exists(f"/proc/{pid}")


def prepared(
    walls: Walls,
    attempt: AttemptDir,
    view: Path | None,
    script: str,
    env: dict[str, str],
    ready: ReadyWall | None = None,
) -> Order:
    environment = {**without_secrets(os.environ), **env, ATTEMPT_TAG: attempt.attempt_id}
    launch = Launch(argv=[sys.executable, "-c", script], env=environment, cwd=str(attempt.job_dir))
    launch, wall = walls.raise_around(attempt, view, launch, list(env), ready=ready)
    return Order(
        attempt_id=attempt.attempt_id,
        attempt_dir=str(attempt.path),
        argv=launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        output=str(attempt.output_log),
        wall=wall,
    )


def cached(cache: DataCache, attempt: AttemptDir) -> Path:
    """A dataset of one file, as the next job will train on it."""
    content = b"cached data"
    digest = hashlib.sha256(content).hexdigest()
    entry = FileEntry(path="data.txt", size=len(content), sha256=digest)
    cache.begin(attempt.attempt_id, {"d" * 64: (entry,)}, 0.0)
    cache.part_path(digest).write_bytes(content)
    assert cache.keep(digest, len(content))
    return cache.lay_out(attempt.attempt_id, "data", [entry])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("wish")
    parser.add_argument("script", type=Path)
    parser.add_argument("--job-path", action="append", default=[])
    args = parser.parse_args()
    grants = job_paths(args.job_path)
    print(json.dumps(asyncio.run(run(args.folder, args.wish, args.script.read_text(), grants))))


if __name__ == "__main__":
    main()
