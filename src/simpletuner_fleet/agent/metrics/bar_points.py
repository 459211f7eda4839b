"""Makes points from progress bars: a trainer that reports to nobody still draws its step and loss.

They are written to a file of the attempt's own, one for each step that was seen, so that they are sent as any other
numbers are, in the same order whoever reads them again.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from simpletuner_fleet.agent.metrics.metric_files import latest_points, opened
from simpletuner_fleet.core.training.metrics import DRAWN, Bar, loss_of, read_bar
from simpletuner_fleet.protocol.metrics import to_wire

log = logging.getLogger(__name__)

NAME = "bars.jsonl"
PIECE_BYTES = 1024 * 1024
MOST_PIECES = 16
MOST_UNENDED_BYTES = 64 * 1024
_BREAK = re.compile(rb"[\r\n]")
BAR = DRAWN.encode()


class BarJournal:
    """Writes the points that a trainer's progress bars show to a file.

    A step is drawn several times, its loss last: it is noted when the next step is drawn, or at the end.
    """

    def __init__(
        self, output_log: Path, file: Path, since: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._log, self._file, self._clock = output_log, file, clock
        self._offset = 0
        self._noted: int | None = None
        self._since = since
        self._drawn: tuple[Bar, float] | None = None

    def note(self, ended: bool) -> None:
        """Looks at what was printed since the last time."""
        if self._noted is None:
            before = latest_points(self._file)
            self._noted = max(self._since, before[-1].step if before else 0)
        lines = [self._line(*whole) for bar in self._bars(ended) if (whole := self._finished_by(bar))]
        if ended and self._drawn and self._drawn[0].step > self._noted:
            lines.append(self._line(*self._drawn))
            self._drawn = None
        if lines:
            self._append(lines)

    def _finished_by(self, bar: Bar) -> tuple[Bar, float] | None:
        """Returns the step before, once this bar shows that it is over."""
        assert self._noted is not None
        before, self._drawn = self._drawn, (bar, self._clock())
        is_new = before is not None and before[0].step != bar.step and before[0].step > self._noted
        return before if is_new else None

    def _line(self, bar: Bar, at: float) -> str:
        self._noted = bar.step
        values = {key: to_wire(value) for key, value in bar.values.items()}
        return json.dumps({**values, "step": bar.step, "total": bar.total, "time": at}) + "\n"

    def _bars(self, ended: bool) -> Iterator[Bar]:
        for line in self._new_lines(ended):
            bar = read_bar(line.decode("utf-8", "replace")) if BAR in line else None
            if bar is not None and bar.of_training and loss_of(bar.values) is not None:
                yield bar

    def _new_lines(self, ended: bool) -> Iterator[bytes]:
        file = opened(self._log)
        if file is None:
            return
        with file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._offset = 0  # a script has emptied it
            for _ in range(MOST_PIECES):
                file.seek(self._offset)
                piece = file.read(PIECE_BYTES)
                if not piece:
                    return
                *lines, rest = _BREAK.split(piece) if BAR in piece else _without_bars(piece)
                if (ended and len(piece) < PIECE_BYTES) or len(rest) > MOST_UNENDED_BYTES:
                    lines, rest = [*lines, rest], b""
                self._offset += len(piece) - len(rest)
                yield from lines
                if not lines:
                    return

    def _append(self, lines: list[str]) -> None:
        try:
            with self._file.open("a", encoding="ascii") as file:
                file.writelines(lines)
        except OSError as error:
            log.debug("bars are not noted: %s", error)


def _without_bars(piece: bytes) -> list[bytes]:
    """Returns all whole lines as one, where nobody looks into them, and what follows the last of them."""
    end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
    return [piece[:end], piece[end + 1 :]] if end >= 0 else [piece]
