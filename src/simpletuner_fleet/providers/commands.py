"""Runs a local command that a provider is asked with, until it ends or the time limit is over."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from simpletuner_fleet.child_processes import READ_BYTES, give, killed, started
from simpletuner_fleet.providers.contract import ProviderRefused, ProviderUnsure

MAX_PRINTED_BYTES = 4 * 1024 * 1024
"""Whoever answers through a command may be under the control of a job that ran there."""


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
        process = await started(
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
            printed, complained = await _spoken_with(process, script)
            await process.wait()
    except TimeoutError as error:
        raise ProviderUnsure(f"{asked or command[0]} did not answer in {within_s:g} s") from error
    except asyncio.LimitOverrunError as error:
        raise ProviderUnsure(f"{asked or command[0]} printed more than {MAX_PRINTED_BYTES} bytes") from error
    finally:
        if process.returncode is None:
            await killed(process)
    status = await process.wait()
    complaint = complained.decode(errors="replace").strip() or f"{command[0]} ended with {status}"
    return CommandEnd(status, printed.decode(errors="replace"), complaint)


async def _spoken_with(process: Process, script: str) -> tuple[bytes, bytes]:
    """Returns all that the command printed and complained. Whatever ends this, nobody reads on after it."""
    given = asyncio.create_task(_give(process.stdin, script))
    printed = asyncio.create_task(_read(process.stdout))
    complained = asyncio.create_task(_read(process.stderr))
    try:
        await asyncio.gather(given, printed, complained)
    finally:
        for task in (given, printed, complained):
            task.cancel()
        await asyncio.wait((given, printed, complained))
    return printed.result(), complained.result()


async def _give(stdin: asyncio.StreamWriter | None, script: str) -> None:
    """Writes the script; a command that ends without reading it says by its status what that means."""
    if stdin is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            await give(stdin, script.encode())
        finally:
            stdin.close()


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Reads to the end. Raises LimitOverrunError where there is more than may be read."""
    taken = bytearray()
    while stream is not None and (part := await stream.read(READ_BYTES)):
        taken += part
        if len(taken) > MAX_PRINTED_BYTES:
            raise asyncio.LimitOverrunError("too much was printed", len(taken))
    return bytes(taken)
