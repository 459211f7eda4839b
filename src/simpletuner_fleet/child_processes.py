"""Starts programs that this process asks, and ends them whatever happens to whoever asked."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

READ_BYTES = 64 * 1024
LEFT_S = 5.0
_ending: set[asyncio.Task[None]] = set()
"""Each ends a program for whoever gave up while it was started."""


@asynccontextmanager
async def running(*command: str, **options: Any) -> AsyncIterator[Process]:
    """Yields the program, which runs no longer than this lasts, also where whoever waits is cancelled."""
    process = await started(*command, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            await killed(process)


async def started(*command: str, **options: Any) -> Process:
    """Starts the program. Where whoever waits gives up meanwhile, the start goes on beside it, and what it started is ended:
    cancelled halfway, asyncio would wait for the end of pipes that it never closes."""
    starting = asyncio.create_task(asyncio.create_subprocess_exec(*command, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        ending = asyncio.create_task(_end_once_started(starting))
        _ending.add(ending)
        ending.add_done_callback(_ending.discard)
        raise


async def give(stdin: asyncio.StreamWriter, data: bytes) -> None:
    """Writes to the program's input. Raises a ConnectionError where it has ended, in every event loop."""
    if stdin.is_closing():  # before this process got to it: uvloop would raise an error of its own
        raise BrokenPipeError
    stdin.write(data)
    await stdin.drain()


async def killed(process: Process) -> None:
    """Kills the program and waits for its end. It has not ended before its pipes are read, which others may hold open."""
    with suppress(ProcessLookupError):
        process.kill()

    async def emptied(stream: asyncio.StreamReader | None) -> None:
        while stream is not None and await stream.read(READ_BYTES):
            pass

    with suppress(TimeoutError):
        async with asyncio.timeout(LEFT_S):
            await asyncio.gather(process.wait(), emptied(process.stdout), emptied(process.stderr))


async def _end_once_started(starting: asyncio.Task[Process]) -> None:
    with suppress(OSError):
        process = await starting
        if process.stdin:
            process.stdin.close()
        await killed(process)
