"""Runs a local command that a provider is asked with, until it ends or the time limit is over."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from simpletuner_fleet.providers.contract import ProviderRefused, ProviderUnsure


class CommandEnd(Struct, frozen=True):
    status: int
    """Below zero: the signal that ended it."""
    printed: str
    complained: str


async def run_command(
    command: Sequence[str], environment: Mapping[str, str], script: str, *, within_s: float, asked: str = ""
) -> CommandEnd:
    """Runs the command with the script on its standard input, and returns how it ended.

    `asked` names whoever answers through the command, where that is not the command itself.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ProviderRefused(f"{command[0]} cannot be started: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(within_s):
            printed, complained = await process.communicate(script.encode())
    except TimeoutError as error:
        raise ProviderUnsure(f"{asked or command[0]} did not answer in {within_s:g} s") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    status = await process.wait()
    complaint = complained.decode(errors="replace").strip() or f"{command[0]} ended with {status}"
    return CommandEnd(status, printed.decode(errors="replace"), complaint)
