"""A shim that lacks descriptors, as on a machine whose limits are low, starts nothing and says why."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.core.workers.start_trouble import Blame
from tests.agent.shim_fixtures import alive, order_for, until

NO_DESCRIPTOR = "Too many open files"


@contextmanager
def no_more_descriptors(pid: int) -> Iterator[None]:
    """A process may use no number for a descriptor that it does not use already."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = next(number for number in range(len(used) + 1) if number not in used)
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, usual[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


@pytest.mark.parametrize(
    ("step", "what"), [("hold", "cannot start a process"), ("go", "cannot make shim.sock")]
)
async def test_a_start_without_descriptors_fails_by_no_fault_of_the_job(
    folder: Path, step: str, what: str
) -> None:
    async with Runner() as runner:
        shim, order = await runner.take(), order_for(folder, "open('began', 'w')")
        assert shim.child is not None
        pid = shim.child.pid
        if step == "hold":
            with no_more_descriptors(pid):
                held = await runner.hold(shim, order)
            running = await runner.go(held, 60.0)
        else:
            held = await runner.hold(shim, order)
            with no_more_descriptors(pid):
                running = await runner.go(held, 60.0)
        exit = await running.wait()
        assert (exit.reason, exit.blame, exit.error) == (
            "start_failed",
            Blame.WORKER,
            f"{what}: {NO_DESCRIPTOR}",
        )
        assert running.pid is None
        await running.release()
        await until(lambda: not alive(pid), "the end of the shim")
    assert not (folder / "began").exists()
