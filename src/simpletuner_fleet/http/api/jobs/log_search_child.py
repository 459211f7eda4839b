"""Searches blocks of lines for one pattern, in a separate program, so that a pattern that never ends can be ended."""

import re
import resource
import struct
import sys
from typing import BinaryIO

LINE_BYTES = 8 * 1024
CPU_S = 5
MEMORY_BYTES = 512 * 1024 * 1024
LENGTH = struct.Struct("<I")
SPAN = struct.Struct("<II")


def main(asked: BinaryIO, answers: BinaryIO) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _answer(answers, b"")  # says that it runs
    words = asked.read(LENGTH.unpack(asked.read(LENGTH.size))[0])
    try:
        pattern = re.compile(words)
    except (re.error, OverflowError, RecursionError) as error:
        _answer(answers, str(error).encode()[:500] or b"it is too large")
        return
    _answer(answers, b"")
    while head := asked.read(SPAN.size):
        size, room = SPAN.unpack(head)
        _answer(answers, b"".join(_spans(pattern, asked.read(size), room)))


def _spans(pattern: "re.Pattern[bytes]", block: bytes, room: int) -> list[bytes]:
    lines: list[bytes] = []
    begin = 0
    while begin < len(block) and len(lines) < room:
        cut = block.find(b"\n", begin)
        end = len(block) if cut < 0 else cut
        if pattern.search(block[begin : min(end, begin + LINE_BYTES)]):
            lines.append(SPAN.pack(begin, end))
        begin = end + 1
    return lines


def _answer(answers: BinaryIO, data: bytes) -> None:
    answers.write(LENGTH.pack(len(data)) + data)
    answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
