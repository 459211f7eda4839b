"""Moves files for asyncio programs, in a thread that ends when whoever waits for it is cancelled."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from simpletuner_fleet.client.interruption import Interrupter

Result = TypeVar("Result")
ENDING_S = 1.0
"""How long a thread is waited for that was told to end; one that looks up a name or connects cannot be woken."""


async def in_thread(act: Callable[[], Result]) -> Result:
    """Returns what it returns. Once this has raised that it was cancelled, the thread reads and writes nothing more."""
    interrupter = Interrupter()

    def work() -> Result:
        with interrupter.begun():
            return act()

    working = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        interrupter.end()
        working.add_done_callback(_forget)
        await asyncio.wait([working], timeout=ENDING_S)
        raise


def _forget(working: asyncio.Future[Result]) -> None:
    """Looks at an error that nobody wants to know, so that asyncio does not tell of it."""
    if not working.cancelled():
        working.exception()
