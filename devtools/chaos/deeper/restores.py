"""A backup is made while jobs run and put back while they still do: what was acknowledged since is forgotten, no more."""

import asyncio
import re
import time

from devtools.chaos.injector import Fault, FaultInjector, Undo
from devtools.chaos.processes import SIMPLETUNER

COMMAND_WITHIN_S = 60.0
WORKER_ID = re.compile(r"\bw_[A-Za-z0-9_-]+")


def boottime() -> float:
    """The clock by which trainers write their journal."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def backup_restored(injector: FaultInjector, fault: Fault) -> Undo:
    fleet = injector.fleet
    file = fleet.folder / f"{injector.counts['backup_restored']}.backup"
    backup_at = boottime()
    await _command(injector, "create", str(file))

    async def undo() -> None:
        fleet.server.kill()
        said = await _command(injector, "restore", str(file), "--replace")
        restored_at = boottime()
        file.unlink()
        await fleet.start_server()
        assert fleet.on_restored is not None
        await fleet.on_restored(backup_at, restored_at, WORKER_ID.findall(said))

    return undo


async def _command(injector: FaultInjector, *words: str) -> str:
    """Returns what it says to people."""
    process = await asyncio.create_subprocess_exec(
        str(SIMPLETUNER),
        "backup",
        *words,
        env=injector.fleet.server.environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(COMMAND_WITHIN_S):
        _, said = await process.communicate()
    text = said.decode(errors="replace")
    assert process.returncode == 0, f"backup {words[0]}: {text[-2000:]}"
    return text
