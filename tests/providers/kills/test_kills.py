"""The orchestrator is killed at every step of bringing and ending machines, of every provider: nothing is forgotten.

A real server, really killed (SIGKILL), at real databases and places of machines, with real workers and trainings.
"""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.kit import World
from tests.e2e.processes import Program, wait_until
from tests.providers.kills.grounds import MAKERS, Ground, Striker, ground_of
from tests.providers.kills.steps import BRINGING, CALLS, EVERYWHERE

TRAPPED = Path(__file__).with_name("trapped_server.py")
LONG_S = 240.0
IDLE_S = 1
LOOK_S = 0.3


class KilledWorld(World):
    """Its server comes back by itself, as a service would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.traps = folder / "traps"
        self.traps.mkdir()
        (self.traps / "steps").touch()
        self.environment["TRAPS"] = str(self.traps)
        self.environment["PYTHONPATH"] = str(TRAPPED.parents[3])

    def launch_server(self) -> Program:
        self.server = Program(
            "server",
            [sys.executable, str(TRAPPED), "server", *self._server_arguments],
            {**self.environment, "SIMPLETUNER_HOME": str(self.home), **self.settings},
            self.folder / "server.log",
        )
        self.programs.append(self.server)
        return self.server

    def set_traps(self, steps: tuple[str, ...]) -> None:
        (self.traps / "steps").write_text("\n".join(steps))
        before = (self.traps / "pid").read_text()
        Striker(self.traps).strike("the first of all")
        wait_until(lambda: (self.traps / "pid").read_text() not in ("", before), "it is started again")
        self.await_ready()

    def struck(self) -> list[str]:
        return (self.traps / "struck").read_text().splitlines()

    def looked(self, path: str) -> dict[str, Any] | None:
        """What it answers; None while there is nobody."""
        try:
            answer = self.call("GET", path)
        except httpx2.TransportError:
            return None
        return dict(answer.json()) if answer.is_success else None

    def puts(self, path: str, body: dict[str, Any]) -> bool:
        try:
            answer = self.call("PUT", path, body)
        except httpx2.TransportError:
            return False
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        assert answer.is_success or answer.status_code == 503, answer.text
        return answer.is_success


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledWorld]:
    world = KilledWorld(tmp_path)
    try:
        yield world
    finally:
        world.close()


def pool_of(ground: Ground) -> dict[str, Any]:
    return {
        "provider": ground.provider,
        "settings": ground.settings,
        "secret": "key" if ground.secret else None,
        "max_machines": ground.jobs,
        "trainers": ["command"],
        "idle_s": IDLE_S,
        "boot_s": ground.boot_s,
    }


def what_is_left(world: KilledWorld, ground: Ground, steps: tuple[str, ...], jobs: list[str]) -> list[str]:
    """Everything that is not as it has to be at the end."""
    struck = world.struck()
    left = [step for step in steps if step not in struck]
    if not any(step.split()[0] in BRINGING for step in left):
        (world.folder / "gate").touch()
    if left:
        return left
    for job_id in jobs:
        job = world.looked(f"/api/jobs/{job_id}")
        if job is None or job["status"] != "completed":
            left.append(f"{job_id} is {job and job['status']}")
    listed = world.looked("/api/machines")
    if listed is None or listed["machines"]:
        left.append(f"machines: {listed}")
    return left + [f"there is {name}" for name in ground.there()]


HERE = [pytest.param("process", EVERYWHERE, id="process"), pytest.param("runpod", CALLS, id="runpod")]
LONG = [
    pytest.param(one, EVERYWHERE, marks=pytest.mark.long, id=f"{one}-everywhere")
    for one in MAKERS
    if one != "process"
]
"""What is written at a step is the same for all: the suite strikes there with one of them, and with a cloud at its calls."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("provider", "everywhere"), [*HERE, *LONG])
def test_killed_at_every_step_it_forgets_doubles_and_leaves_behind_no_machine(
    provider: str, everywhere: tuple[str, ...], killed: KilledWorld, tmp_path: Path
) -> None:
    world = killed
    with ground_of(provider, tmp_path, Striker(world.traps)) as ground:
        world.environment |= ground.environment
        world.start_server()
        if ground.secret:
            assert world.puts("/api/secrets/key", {"value": ground.secret})
        nothing = world.command("true", resources={"gpus": 0})
        jobs = [world.submit(nothing) for _ in range(ground.jobs)]
        steps = (*everywhere, *ground.more_steps)
        world.set_traps(steps)
        wait_until(lambda: world.puts("/api/pools/all", pool_of(ground)), "the pool is saved", LONG_S)

        until, most = time.monotonic() + LONG_S, 0
        while left := what_is_left(world, ground, steps, jobs):
            most = max(most, len(ground.there()))
            assert time.monotonic() < until, (left, world.struck(), world.orchestrator.text[-3000:])
            time.sleep(LOOK_S)

        assert sorted(world.struck()) == sorted([*steps, "the first of all"])
        assert most <= ground.jobs
        known = world.get("/api/machines?gone=true")["machines"]
        assert len({one["name"] for one in known}) == len(known)
        assert not any(one["why"] == "stray" for one in known), known
        world.orchestrator.signal(signal.SIGKILL)
