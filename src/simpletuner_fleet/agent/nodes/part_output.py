"""Reads what a part on another node than the first has printed, piece by piece, for the first node."""

import os
from pathlib import Path
from typing import BinaryIO

from simpletuner_fleet.agent.ship.hole_punching import punch_hole
from simpletuner_fleet.agent.ship.logs.log_heads import COMPARED_BYTES
from simpletuner_fleet.agent.ship.logs.log_stream import lost
from simpletuner_fleet.trainers.job_files import LACKING

PIECE_BYTES = 256 * 1024
SENT_KEPT_BYTES = 64 * 1024 * 1024
"""Of what was sent: many times what a connection that breaks can have under way, which the next one asks for again."""
FREED_AT_ONCE_BYTES = 8 * 1024 * 1024
MOST_BEHIND_BYTES = 256 * 1024 * 1024
"""Of what was printed and not sent: of more, only the end is. A part's end is told after what it has printed."""
END_BYTES = 8 * 1024 * 1024


class PartOutput:
    """Reads a trainer's output by places of what is sent, which go on where a script has emptied the file.

    Its methods block: one thread at a time may be in them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begins = 0
        """Where in what is sent the present content of the file begins."""
        self._reached = 0
        """Up to where that content was read."""
        self._end = b""
        """The last bytes before that place."""
        self._freed = 0
        """Up to here the disk space of the content is given back."""

    def piece(self, offset: int) -> tuple[int, bytes | None]:
        """Returns how much of a flood is left out from this place on, and what follows that.

        It is None where that cannot be told for now, and empty where there is nothing to read.
        """
        try:
            with self.path.open("rb") as file:
                self._begin_anew_if_emptied(file)
                if offset < self._begins:
                    return 0, lost(min(self._begins - offset, PIECE_BYTES))
                return self._next(file, offset - self._begins)
        except OSError as error:
            return 0, None if error.errno in LACKING else b""

    def _begin_anew_if_emptied(self, file: BinaryIO) -> None:
        """Notes that a script has written `> /dev/stdout`: the file is shorter than it was, or holds something else."""
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, min(size, self._reached) - len(self._end)))
        if size < self._reached or file.read(len(self._end)) != self._end:
            self._begins += self._reached
            self._reached, self._end, self._freed = 0, b"", 0

    def _next(self, file: BinaryIO, start: int) -> tuple[int, bytes]:
        """A job may also make its output long by a hole, which costs it nothing."""
        behind = os.fstat(file.fileno()).st_size - start
        gap = behind - END_BYTES if behind > MOST_BEHIND_BYTES else 0
        file.seek(start + gap)
        data = file.read(PIECE_BYTES)
        if start + gap + len(data) > self._reached:
            self._reached, self._end = start + gap + len(data), data[-COMPARED_BYTES:]
        return gap, data

    def give_back(self, sent: int) -> None:
        """Frees the disk space of what the first node has: a flood of output must not fill this node's disk."""
        end = sent - self._begins - SENT_KEPT_BYTES
        if end - self._freed >= FREED_AT_ONCE_BYTES:
            start, self._freed = self._freed, end
            punch_hole(self.path, start, end)
