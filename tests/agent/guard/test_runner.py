"""The runner with real shims and real trainers."""

import asyncio
import json
import os
import secrets
import signal
import time
from pathlib import Path

import psutil
import pytest

from simpletuner_fleet.agent.guard.runner import EndedAttempt, Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_client import Hello, ShimGone, ShimLink
from simpletuner_fleet.agent.state_dir import AttemptDir
from tests.agent.shim_fixtures import (
    DOUBLE_FORK,
    TICKER,
    alive,
    frozen,
    order_for,
    pid_in,
    read,
    shim_of,
    start,
    until,
)


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def own_shims() -> list[int]:
    """Those that this process has started by itself, and those that its zygote has forked."""
    return [child.pid for child in psutil.Process().children(recursive=True) if is_shim(child)]


def is_shim(process: psutil.Process) -> bool:
    try:
        program, parent = " ".join(process.cmdline()), process.parent()
        by_zygote = parent is not None and "shim_zygote.py" in " ".join(parent.cmdline())
    except psutil.NoSuchProcess:
        return False
    return "/shim.py" in program or ("shim_zygote.py" in program and by_zygote)


async def test_a_trainer_that_ends_well_gives_exit_code_zero_and_its_last_lines(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "print('all done')"))
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.exit_code, ended.signal) == ("exited", 0, None)
    assert ended.last_lines == "all done"


async def test_who_leaves_the_runner_hangs_up_and_the_trainer_goes_on(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "import time; time.sleep(60)"), 60.0)
    try:
        assert running._shim.link._writer.is_closing()
        assert running.pid is not None
        assert psutil.pid_exists(running.pid)
    finally:
        async with Runner() as another:
            found_again = await another.adopt(folder)
            assert isinstance(found_again, RunningTrainer)
            found_again.stop(0.0)
            await found_again.wait()
            await found_again.release()
        assert running._shim.child is not None
        running._shim.child.wait(10)


async def test_a_release_that_is_cancelled_leaves_the_shim_to_the_runner(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "pass"))
        await running.wait()
        releasing = asyncio.create_task(running.release())
        await asyncio.sleep(0)
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
        await until(lambda: running.is_over, "the shim is reaped")


async def test_the_guardian_of_a_start_that_was_cancelled_ends_while_the_runner_goes_on() -> None:
    async with Runner() as runner:
        runner.warm_up()
        spare = runner._spare
        assert spare is not None
        taking = asyncio.create_task(runner.take())
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await spare
        await until(lambda: not own_shims(), "no shim is left")


async def test_the_exit_code_and_the_output_of_a_failing_trainer_are_told(folder: Path) -> None:
    program = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr); sys.exit(3)"
    async with Runner() as runner:
        running = await start(runner, order_for(folder, program))
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.exit_code) == ("exited", 3)
    assert ended.last_lines == "out\nerr"


async def test_a_trainer_that_a_signal_ends_is_told_with_the_signal(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "import os; os.kill(os.getpid(), 11)"))
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.exit_code, ended.signal) == ("exited", None, signal.SIGSEGV)


async def test_a_program_that_is_not_there_is_a_failed_start_with_a_clear_message(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, ["no-such-trainer", "--fast"]))
        ended = await running.wait()
        await running.release()
    assert running.pid is None
    assert ended.reason == "start_failed"
    assert ended.error == "cannot start 'no-such-trainer': No such file or directory"


async def test_a_working_folder_that_is_not_there_is_named(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, ["true"], cwd="/no/such/folder"))
        ended = await running.wait()
        await running.release()
    assert ended.error == "cannot start '/no/such/folder': No such file or directory"


async def test_the_end_is_on_disk_before_it_is_told(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "raise SystemExit(5)"))
        await running.wait()
        recorded = json.loads((folder / "exit.json").read_text())
        trainer = json.loads((folder / "trainer.json").read_text())
        await running.release()
    assert (recorded["exit_code"], recorded["reason"]) == (5, "exited")
    assert recorded["ended_at"] <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert trainer["pid"] == running.pid
    assert trainer["start_ticks"] > 0


async def test_the_environment_is_exactly_the_given_one_and_nothing_else_is_inherited(folder: Path) -> None:
    program = (
        "import os, json, signal; print(json.dumps({"
        "'env': dict(os.environ), 'fds': sorted(os.listdir('/proc/self/fd')), 'sid': os.getsid(0) == os.getpid(),"
        "'stdin': os.readlink('/proc/self/fd/0'), 'cwd': os.getcwd(),"
        "'ignored': [n for n in (1, 2, 13, 15) if signal.getsignal(n) == signal.SIG_IGN]}))"
    )
    env = {"ONLY": "this", "LC_CTYPE": "C.UTF-8"}
    async with Runner() as runner:
        running = await start(runner, order_for(folder, program, env=env))
        ended = await running.wait()
        await running.release()
    seen = json.loads(ended.last_lines)
    assert seen["env"] == env
    assert seen["fds"] == ["0", "1", "2", "3"]  # 3 is the listing's own
    assert seen["stdin"] == "/dev/null"
    assert seen["sid"] is True
    assert seen["cwd"] == str(folder)
    assert seen["ignored"] == [13]  # Python's own doing


async def test_a_shim_knows_nothing_of_the_workers_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLETUNER_WORKER_TOKEN", "wt_canary")
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "import time; time.sleep(600)"))
        assert running.pid is not None
        shim = shim_of(running.pid)
        assert "canary" not in environment_of(shim) + environment_of(running.pid)
        running.stop(0)
        await running.wait()
        await running.release()


async def test_a_double_forked_daemon_ends_with_its_trainer(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, DOUBLE_FORK))
        ended = await running.wait()
        daemon = pid_in(folder / "daemon.pid")
        assert daemon is not None
        assert not alive(daemon)
        await running.release()
    assert (ended.reason, ended.exit_code) == ("exited", 0)


async def test_a_stop_ends_the_tree_to_the_last_double_forked_process(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, DOUBLE_FORK + "time.sleep(600)"))
        daemon = await until(lambda: pid_in(folder / "daemon.pid"))
        assert running.pid is not None
        running.stop(0.1)
        ended = await running.wait()
        assert not alive(daemon)
        assert not alive(running.pid)
        await running.release()
    assert (ended.reason, ended.signal) == ("stopped", signal.SIGTERM)


async def test_a_trainer_may_use_its_grace_and_end_in_its_own_way(folder: Path) -> None:
    program = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(4)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
    async with Runner() as runner:
        running = await start(runner, order_for(folder, program))
        await until(lambda: "ready" in read(folder / "output.log"))
        running.stop(600)
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.exit_code, ended.last_lines) == ("stopped", 4, "ready\nsaved")


async def test_children_keep_their_grace_when_the_launcher_ends_first(folder: Path) -> None:
    program = """
import os, signal, time
if os.fork():
    time.sleep(600)
def save(*_):
    time.sleep(0.2)
    open("saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
time.sleep(600)
"""
    async with Runner() as runner:
        running = await start(runner, order_for(folder, program))
        await until((folder / "ready").exists)
        running.stop(600)
        await running.wait()
        await running.release()
    assert (folder / "saved").exists()


async def test_a_second_stop_can_shorten_the_grace(folder: Path) -> None:
    program = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    async with Runner() as runner:
        running = await start(runner, order_for(folder, program))
        await until(lambda: "deaf" in read(folder / "output.log"))
        running.stop(600)
        running.stop(0)
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.signal) == ("stopped", signal.SIGKILL)


async def test_a_flood_of_output_blocks_neither_the_trainer_nor_the_loop(folder: Path) -> None:
    """100 MB, and a task that ticks meanwhile as heartbeats do."""
    program = "import os\nline = b'x' * 99 + b'\\n'\nfor _ in range(100): os.write(1, line * 10_000)"
    longest_gap_s = 0.0

    async def tick() -> None:
        nonlocal longest_gap_s
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest_gap_s = max(longest_gap_s, time.monotonic() - before)

    async with Runner() as runner:
        ticking = asyncio.create_task(tick())
        running = await start(runner, order_for(folder, program))
        ended = await running.wait()
        await running.release()
        ticking.cancel()
    assert ended.exit_code == 0
    assert (folder / "output.log").stat().st_size == 100_000_000
    assert longest_gap_s < 5.0
    (folder / "output.log").unlink()


async def test_a_silent_trainer_blocks_nothing(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "import time; time.sleep(600)"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running.wait(), 0.05)
        running.stop(0)
        ended = await running.wait()
        await running.release()
    assert ended.last_lines == ""


async def test_a_killed_shim_leaves_no_process_behind(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, DOUBLE_FORK + "time.sleep(600)"))
        daemon = await until(lambda: pid_in(folder / "daemon.pid"))
        assert running.pid is not None
        os.kill(shim_of(running.pid), signal.SIGKILL)
        ended = await running.wait()
        assert not alive(daemon)
        assert not alive(running.pid)
        await running.release()
    assert ended.reason == "shim_lost"


async def test_what_a_trainer_leaves_behind_is_guarded_though_its_guardian_dies_with_it(folder: Path) -> None:
    """A power cut of a machine, as the kernel's killer of processes makes it: both end in one moment, in any order."""
    hides = DOUBLE_FORK.replace("time.sleep(600)", "os.execve('/bin/sleep', ['sleep', '600'], {})")
    async with Runner() as runner:
        running = await start(runner, order_for(folder, hides + "time.sleep(600)"))
        daemon = await until(lambda: pid_in(folder / "daemon.pid"))
        assert running.pid is not None
        trainer, shim = running.pid, shim_of(running.pid)
        with frozen(shim):
            os.kill(trainer, signal.SIGKILL)
            await until(
                lambda: not Path(f"/proc/{trainer}").exists(), "its second guardian, which sees its end"
            )
            os.kill(shim, signal.SIGKILL)
            await until(lambda: not alive(daemon))
        await running.wait()
        await running.release()


async def test_what_a_killed_shim_had_recorded_still_counts(folder: Path) -> None:
    """It may die between recording how the trainer ended and telling it."""
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER))
        assert running.pid is not None
        (folder / "exit.json").write_text('{"reason": "exited", "exit_code": 0, "ended_at": 1.0}')
        os.kill(shim_of(running.pid), signal.SIGKILL)
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.exit_code) == ("exited", 0)


async def test_two_attempts_run_beside_each_other_and_end_apart(tmp_path: Path) -> None:
    async with Runner() as runner:
        first_id, second_id = (f"a_{secrets.token_hex(6)}" for _ in range(2))
        first = await start(runner, order_for(tmp_path / first_id, TICKER))
        second = await start(runner, order_for(tmp_path / second_id, TICKER))
        first.stop(0)
        await first.wait()
        ticks = len(read(tmp_path / second_id / "ticks"))
        await until(lambda: len(read(tmp_path / second_id / "ticks")) > ticks)
        second.stop(0)
        await second.wait()
        await first.release()
        await second.release()


async def test_a_dead_spare_is_replaced(folder: Path) -> None:
    async with Runner() as runner:
        runner.warm_up()
        spare = (await until(own_shims))[0]
        os.kill(spare, signal.SIGKILL)
        await until(lambda: not alive(spare))
        running = await start(runner, order_for(folder, "print('fine')"))
        ended = await running.wait()
        await running.release()
    assert ended.last_lines == "fine"


async def test_leaving_the_runner_lets_the_spare_go() -> None:
    async with Runner() as runner:
        runner.warm_up()
        await until(own_shims)
    assert not own_shims()


async def test_an_end_stays_readable_after_the_shim_is_gone(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "print('bye'); raise SystemExit(6)"))
        await running.wait()
        await running.release()
        adopted = await runner.adopt(folder)
    assert isinstance(adopted, EndedAttempt)
    assert (adopted.exit.exit_code, adopted.exit.last_lines, adopted.reported) == (6, "bye", False)


async def test_an_attempt_that_never_began_is_told_as_lost(folder: Path) -> None:
    async with Runner() as runner:
        adopted = await runner.adopt(folder)
    assert isinstance(adopted, EndedAttempt)
    assert adopted.exit.reason == "shim_lost"


async def test_an_attempt_that_was_given_up_is_not_started_any_more(folder: Path) -> None:
    order = order_for(folder, TICKER)
    assert AttemptDir(folder).claim()
    async with Runner() as runner:
        running = await start(runner, order)
        ended = await running.wait()
    assert running.pid is None
    assert ended.reason == "shim_lost"
    assert not (folder / "ticks").exists()


async def test_an_attempt_that_was_begun_cannot_be_given_up(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "pass"))
        assert not AttemptDir(folder).claim()
        await running.release()


async def test_a_line_to_a_guardian_that_begins_wrongly_is_closed(tmp_path: Path) -> None:
    closed = asyncio.Event()

    async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"event":"paused"}\n')
        await reader.read()
        writer.close()
        closed.set()

    async with await asyncio.start_unix_server(talk_nonsense, tmp_path / "shim.sock"):
        link = await ShimLink.to(tmp_path)
        with pytest.raises(ShimGone):
            await link.expect(Hello)
        async with asyncio.timeout(5.0):
            await closed.wait()


async def test_nothing_of_a_held_trainer_runs_before_the_word_to_go(folder: Path) -> None:
    async with Runner() as runner:
        held = await runner.hold(await runner.take(), order_for(folder, "open('ran', 'w').close()"))
        await asyncio.sleep(0.2)
        assert not (folder / "ran").exists()
        assert not (folder / "begun").exists()
        running = await runner.go(held)
        assert (await running.wait()).exit_code == 0
        await running.release()
    assert (folder / "ran").exists()


async def test_a_held_trainer_that_is_dismissed_leaves_no_process_and_never_ran(folder: Path) -> None:
    async with Runner() as runner:
        shim = await runner.take()
        await runner.hold(shim, order_for(folder, "open('ran', 'w').close()"))
        assert shim.child is not None
        below = psutil.Process(shim.child.pid).children(recursive=True)
        assert below
        await until((folder / "output.log").exists)  # held: it still prepares by itself
        await runner.dismiss(shim)
        assert not [child for child in below if alive(child.pid)]
    assert sorted(os.listdir(folder)) == ["output.log"]
    assert AttemptDir(folder).claim()


async def test_what_keeps_a_held_trainer_from_its_start_is_told_when_it_is_to_go(folder: Path) -> None:
    async with Runner() as runner:
        held = await runner.hold(await runner.take(), order_for(folder, ["true"], cwd="/no/such/folder"))
        assert not held.gone
        ended = await (await runner.go(held)).wait()
    assert ended.reason == "start_failed"
    assert "/no/such/folder" in (ended.error or "")


async def test_the_death_of_a_held_trainers_shim_is_told_when_it_is_to_go(folder: Path) -> None:
    async with Runner() as runner:
        shim = await runner.take()
        held = await runner.hold(shim, order_for(folder, TICKER))
        assert shim.child is not None
        shim.child.kill()
        running = await runner.go(held)
        assert (running.pid, (await running.wait()).reason) == (None, "shim_lost")
    assert not (folder / "ticks").exists()
