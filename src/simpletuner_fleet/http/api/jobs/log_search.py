"""Finds lines of a log: plain text in this process, patterns in a child process that can be ended.

A call reads for about a second and says where to go on. Python's patterns can take for ever on an unlucky line and
cannot be interrupted, so they run elsewhere, with limits of time and memory, on the beginning of each line.
"""

import asyncio
import logging
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.child_processes import give, running
from simpletuner_fleet.core.errors import Invalid, StoreUnavailable
from simpletuner_fleet.storage.log_reading import MAX_LINE_BYTES, StoredLog

log = logging.getLogger(__name__)

TEXT_BLOCK_BYTES = 1024 * 1024
PATTERN_BLOCK_BYTES = 128 * 1024
BUDGET_S = 0.7
BLOCK_WITHIN_S = 1.0
CHILD_STARTS_WITHIN_S = 10.0
CHILD = Path(__file__).with_name("log_search_child.py")
LENGTH = struct.Struct("<I")
GAVE_NO_ANSWER = (TimeoutError, asyncio.IncompleteReadError, ConnectionError)
SPAN = struct.Struct("<II")

Span = tuple[int, int]
Find = Callable[[bytes, int], Awaitable[list[Span]]]
"""Where in the block are the first so many lines that fit."""


class Hit(Struct, frozen=True):
    offset: int
    """The offset at which its line begins."""
    line: bytes


class SearchResult(Struct, frozen=True):
    hits: list[Hit]
    next: int
    """The offset to go on at: a line begins there."""


class PatternTooSlow(Invalid):
    code = "pattern_too_slow"


class SearchUnavailable(StoreUnavailable):
    """The server's machine has no process or no memory left for a search."""

    code = "search_unavailable"
    next_step = (
        "Try again shortly, or search for plain text (regex=0). If it keeps happening, check the memory and "
        "processes of the orchestrator's machine."
    )


async def search_text(log: StoredLog, text: str, start: int, most: int) -> SearchResult:
    """Finds lines with this text from `start` on, which must be the start of a line. Upper and lower case differ."""
    needle = text.encode()

    async def find(block: bytes, room: int) -> list[Span]:
        return await asyncio.to_thread(_lines_with, block, needle, room)

    return await _walk(log, start, most, find, TEXT_BLOCK_BYTES)


async def search_pattern(log: StoredLog, pattern: str, start: int, most: int) -> SearchResult:
    """Finds lines that match the pattern, which sees bytes, and only the first 8 KiB of each line."""
    async with _child_for(pattern) as find:
        return await _walk(log, start, most, find, PATTERN_BLOCK_BYTES)


async def _walk(log: StoredLog, start: int, most: int, find: Find, block_bytes: int) -> SearchResult:
    hits: list[Hit] = []
    at, until = start, time.monotonic() + BUDGET_S
    while time.monotonic() < until:
        block = await log.read(at, block_bytes)
        lines = block[: block.rfind(b"\n") + 1] or block
        if len(block) < block_bytes:
            lines = block
        if not lines:
            break
        for begin, end in await find(lines, most - len(hits)):
            hits.append(Hit(at + begin, lines[begin : min(end, begin + MAX_LINE_BYTES)]))
        if len(hits) >= most:
            last = hits[-1].offset - at
            return SearchResult(hits, at + (lines.find(b"\n", last) + 1 or len(lines)))
        at += len(lines)
    return SearchResult(hits, at)


def _lines_with(block: bytes, needle: bytes, room: int) -> list[Span]:
    spans: list[Span] = []
    at = 0
    while len(spans) < room and (hit := block.find(needle, at)) >= 0:
        begin = block.rfind(b"\n", at, hit) + 1 or at
        end = block.find(b"\n", hit)
        end = len(block) if end < 0 else end
        spans.append((begin, end))
        at = end + 1
    return spans


@asynccontextmanager
async def _child_for(pattern: str) -> AsyncIterator[Find]:
    async with AsyncExitStack() as held:
        stdin, stdout = await _started(held)

        async def ask(question: bytes, within_s: float) -> bytes:
            try:
                async with asyncio.timeout(within_s):
                    await give(stdin, question)
                    return await _answer(stdout)
            except GAVE_NO_ANSWER:
                raise PatternTooSlow(
                    "The pattern takes too long on this log.",
                    path="$.q",
                    next_step="Use fewer nested repeats, or search for plain text (regex=0).",
                ) from None

        async def find(block: bytes, room: int) -> list[Span]:
            spans = await ask(SPAN.pack(len(block), room) + block, BLOCK_WITHIN_S)
            return list(SPAN.iter_unpack(spans))

        words = pattern.encode()
        refusal = await ask(LENGTH.pack(len(words)) + words, CHILD_STARTS_WITHIN_S)
        if refusal:
            raise Invalid(f"The pattern is not readable: {refusal.decode('utf-8', 'replace')}.", path="$.q")
        yield find


async def _started(held: AsyncExitStack) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    """Starts the child, and waits until it says so: what ends it after that is the pattern."""
    try:
        child = await held.enter_async_context(
            running(
                *(sys.executable, "-I", "-S", str(CHILD)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
            )
        )
        assert child.stdin is not None
        assert child.stdout is not None
        async with asyncio.timeout(CHILD_STARTS_WITHIN_S):
            await _answer(child.stdout)
    except (OSError, *GAVE_NO_ANSWER) as error:
        log.error("no process can be started that searches logs: %s", str(error) or type(error).__name__)
        raise SearchUnavailable("The server cannot start a process that searches for the pattern.") from None
    return child.stdin, child.stdout


async def _answer(stdout: asyncio.StreamReader) -> bytes:
    return await stdout.readexactly(LENGTH.unpack(await stdout.readexactly(LENGTH.size))[0])
