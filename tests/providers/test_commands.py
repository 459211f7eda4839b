"""A command that a provider is asked with: it ends in time, and prints no more than may be read."""

import asyncio
import resource
import time

import pytest

from simpletuner_fleet import child_processes
from simpletuner_fleet.cli.programs.server_loop import ServerLoop
from simpletuner_fleet.providers import commands
from simpletuner_fleet.providers.commands import run_command
from simpletuner_fleet.providers.contract import ProviderUnsure

PATH = {"PATH": "/usr/bin:/bin"}


def hold_the_loop() -> None:
    """Lets the command be further than the start of it is here."""
    time.sleep(0.003)


async def test_what_was_printed_and_complained_comes_back_with_the_status() -> None:
    end = await run_command(["sh", "-s"], PATH, "echo a; echo b >&2; exit 3\n", within_s=10.0)
    assert (end.status, end.printed, end.complained) == (3, "a\n", "b")


async def test_a_command_that_reads_nothing_may_end_before_its_script_is_written() -> None:
    end = await run_command(["true"], PATH, "#" * 10_000_000, within_s=10.0)
    assert end.status == 0


def test_a_command_may_have_ended_before_the_loop_of_the_server_gets_to_it() -> None:
    async def late_for_it() -> int:
        asking = asyncio.create_task(run_command(["true"], PATH, "read by nobody", within_s=10.0))
        for _ in range(10):
            await asyncio.sleep(0)
            hold_the_loop()
        return (await asking).status

    with asyncio.Runner(loop_factory=ServerLoop) as runner:
        assert runner.run(late_for_it()) == 0


@pytest.mark.parametrize("script", ["yes", "yes >&2"])
async def test_a_command_that_never_stops_printing_is_ended_before_it_fills_the_memory(script: str) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ProviderUnsure, match="the host printed more than"):
        await run_command(["sh", "-c", f"exec {script}"], PATH, "", within_s=5.0, asked="the host")
    more_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert more_kib * 1024 < 16 * commands.MAX_PRINTED_BYTES


async def test_a_command_that_hangs_is_ended_in_time() -> None:
    with pytest.raises(ProviderUnsure, match="sleep did not answer in"):
        await run_command(["sleep", "60"], PATH, "", within_s=0.2)


@pytest.mark.parametrize("steps", range(1, 6))
async def test_whoever_gives_up_while_a_command_is_started_waits_for_nothing(steps: int) -> None:
    reads = ["sh", "-c", "cat > /dev/null; exit 0"]
    asking = asyncio.create_task(run_command(reads, PATH, "", within_s=10.0))
    for _ in range(steps):
        await asyncio.sleep(0)
        hold_the_loop()
    asking.cancel()
    done, _ = await asyncio.wait({asking}, timeout=5.0)
    assert done
    await asyncio.gather(*child_processes._ending)
