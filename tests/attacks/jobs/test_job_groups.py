"""A hostile job that hides from its guardians, or takes all memory and processes: ended and bounded by its control group.

Real groups of the kernel. Where this machine lets nobody make any, or has no controllers to hand on, the test says so and
is skipped: a folder that is shaped like a group proves nothing here.
"""

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from simpletuner_fleet.agent.guard import shim_cgroup
from simpletuner_fleet.agent.guard.runner import EndedAttempt, Runner
from simpletuner_fleet.agent.isolation.cgroup_place import CgroupPlace, find_place
from simpletuner_fleet.agent.isolation.cgroups import Cgroups, JobLimits, choose_cgroups
from simpletuner_fleet.agent.isolation.spares import Spares
from simpletuner_fleet.agent.isolation.walls import Walls, WallSurroundings
from simpletuner_fleet.agent.state_dir import AttemptDir, StateDir
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.workers.job_groups import GroupLack
from simpletuner_fleet.trainers.contract import Launch
from tests.agent.shim_fixtures import alive, order_for, parent_of, pid_in, shim_of, start, until

HIDES = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        program = "import os, time\\nopen('daemon.tmp', 'w').write(f'{os.getpid()}\\\\n')\\n"
        program += "os.rename('daemon.tmp', 'daemon.pid')\\ntime.sleep(600)"
        os.execve("/proc/self/exe", ["kworker", "-I", "-S", "-c", program], {})
    os._exit(0)
os.wait()
time.sleep(600)
"""
"""Leaves a process of its own session without a trace of the attempt in its environment."""
EATS_MEMORY = "held = []\nwhile True: held.append(bytearray(8 << 20))"
FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    except OSError as error:
        raise SystemExit(f"no more: {error}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / f"a_{secrets.token_hex(6)}"


@pytest.fixture
def groups() -> Cgroups:
    had = choose_cgroups(JobLimits(memory_gb=0, pids=0), change=False)
    if had.parts == "none":
        pytest.skip(f"no control groups can be made here: {had.sentence()}")
    return had


@pytest.fixture
def place_with_controllers() -> Iterator[CgroupPlace]:
    """A group of our own that hands on memory and pids, below the tree's root."""
    where = find_place()
    if isinstance(where, GroupLack):
        pytest.skip(f"no control groups can be made here: {where.sentence}")
    top = next(
        folder for folder in (where.folder, *where.folder.parents) if not (folder / "cgroup.type").exists()
    )
    handed_on = set((top / "cgroup.subtree_control").read_text().split())
    if not handed_on >= {"memory", "pids"} or not os.access(top, os.W_OK):
        pytest.skip(f"the root of control groups hands on {sorted(handed_on)} only, or may not be written to")
    group = top / f"simpletuner-test-{os.getpid()}"
    group.mkdir()
    try:
        yield CgroupPlace(folder=group, own=where.own)
    finally:
        shim_cgroup.remove(str(group))


def group_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line for line in lines if line.startswith("0::"))


def exists(group: str) -> bool:
    return Path(group).is_dir()


def made_for(groups: Cgroups, folder: Path) -> str:
    folder.mkdir(parents=True)
    return groups.group_for(AttemptDir(folder))


async def test_every_process_of_a_job_is_in_its_group_and_ends_with_it(folder: Path, groups: Cgroups) -> None:
    group = made_for(groups, folder)
    async with Runner() as runner:
        running = await start(runner, order_for(folder, HIDES, cgroup=group, kill_grace_s=0))
        assert running.pid is not None
        daemon = await until(lambda: pid_in(folder / "daemon.pid"), "the hidden process")
        for pid in (running.pid, daemon):
            assert group_of(pid).endswith(f"/{Path(group).name}")
        for guardian in (parent_of(running.pid), shim_of(running.pid)):
            assert not group_of(guardian).endswith(f"/{Path(group).name}"), "guardians live on"
        assert shim_cgroup.end_all(group)
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.signal) == ("exited", signal.SIGKILL)
    assert not alive(daemon)
    assert shim_cgroup.remove(group)


async def test_what_a_job_left_when_its_guardians_were_killed_is_ended_by_the_next_agent(
    folder: Path, groups: Cgroups
) -> None:
    group = made_for(groups, folder)
    async with Runner() as runner:
        running = await start(runner, order_for(folder, HIDES, cgroup=group))
        assert running.pid is not None
        daemon = await until(lambda: pid_in(folder / "daemon.pid"), "the hidden process")
        guardians = [shim_of(running.pid), parent_of(running.pid)]
        running.leave_alone()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for guardian in guardians:
                os.kill(guardian, number)
    await until(lambda: not alive(guardians[0]), "both are gone")
    assert alive(daemon), "nobody was left to end it"
    async with Runner() as another:
        rest = await another.adopt(folder)
    assert isinstance(rest, EndedAttempt)
    assert not alive(daemon)
    assert not shim_cgroup.end_all(group), "the group is gone, too"


async def test_a_job_that_takes_all_memory_ends_at_its_limit_and_is_told_so(
    folder: Path, place_with_controllers: CgroupPlace
) -> None:
    had = choose_cgroups(JobLimits(memory_gb=0.2, pids=0), place_with_controllers)
    assert had.parts == "kill+memory", had.sentence()
    async with Runner() as runner:
        running = await start(runner, order_for(folder, EATS_MEMORY, cgroup=made_for(had, folder)))
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.signal) == ("exited", signal.SIGKILL)
    assert ended.error == "the job reached the memory limit of its worker, 0.2 GB (--job-memory-gb)"
    assert classify(None, ended.signal, "", ended.error, started=True).code == "memory_limit"


async def test_a_fork_bomb_ends_at_its_limit_and_leaves_nothing(
    folder: Path, place_with_controllers: CgroupPlace
) -> None:
    had = choose_cgroups(JobLimits(memory_gb=0, pids=40), place_with_controllers)
    assert had.parts == "kill+pids", had.sentence()
    group = made_for(had, folder)
    async with Runner() as runner:
        running = await start(runner, order_for(folder, FORKS, cgroup=group))
        ended = await running.wait()
        await running.release()
    assert (
        ended.error
        == "the job reached the process limit of its worker, 40 processes and threads (--job-pids)"
    )
    assert (
        classify(ended.exit_code, None, ended.last_lines, ended.error, started=True).code == "process_limit"
    )
    assert not shim_cgroup.is_populated(group)
    assert shim_cgroup.remove(group)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives jobs users of their own")
async def test_behind_a_wall_that_stood_before_its_order_a_job_is_in_its_group_all_the_same(
    groups: Cgroups,
) -> None:
    with tempfile.TemporaryDirectory(prefix="walls-") as name, StateDir.open(Path(name) / "state") as state:
        about = WallSurroundings(
            home="/root",
            environment={"PATH": os.environ["PATH"]},
            pythons=(sys.executable,),
            grants=(),
            hidden=(str(state.path),),
        )
        walls = Walls("user", about, state.path, 1)
        async with Runner(walls=Spares(walls, groups)) as runner:
            runner.warm_up()
            shim = await runner.take()
            attempt = state.attempt(f"a_{secrets.token_hex(6)}")
            assert shim.ready is not None
            group = shim.ready.cgroup
            assert shim_cgroup.is_populated(group), "it is in there before anybody waits for it"
            assert walls.move_in(shim.ready, attempt)
            state.create_attempt(attempt.attempt_id)
            assert groups.group_for(attempt) == group
            launch = Launch(
                argv=["/bin/sleep", "600"], env={"PATH": os.environ["PATH"]}, cwd=str(attempt.job_dir)
            )
            launch, wall = walls.raise_around(attempt, None, launch, (), ready=shim.ready)
            order = order_for(
                attempt.path, launch.argv, env=launch.env, cwd=launch.cwd, wall=wall, cgroup=group
            )
            running = await runner.go(await runner.hold(shim, order))
            assert running.pid is not None, await running.wait()
            assert group_of(running.pid).endswith(f"/{Path(group).name}")
            assert shim_cgroup.end_all(group)
            ended = await running.wait()
            await running.release()
        assert (ended.reason, ended.signal) == ("exited", signal.SIGKILL)
        assert shim_cgroup.remove(group)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives jobs users of their own")
async def test_the_group_of_a_spare_goes_with_it_and_with_whoever_had_it(groups: Cgroups) -> None:
    with tempfile.TemporaryDirectory(prefix="walls-") as name, StateDir.open(Path(name) / "state") as state:
        about = WallSurroundings(
            home="/root",
            environment={"PATH": os.environ["PATH"]},
            pythons=(sys.executable,),
            grants=(),
            hidden=(str(state.path),),
        )
        walls = Walls("user", about, state.path, 1)
        spares = Spares(walls, groups)
        async with Runner(walls=spares) as runner:
            runner.warm_up()
            shim = await runner.take()
            assert shim.ready is not None
            await runner.dismiss(shim)
        assert not exists(shim.ready.cgroup)
        left = spares.ready()
        assert left is not None
        assert exists(left.cgroup)
        walls.forget_spares()  # as the next process of the worker does
        assert not exists(left.cgroup)
