"""Keeps on disk, in order, the reports that the orchestrator has not acknowledged yet.

One file per report, named by its number. A file has its name only when it is whole and durable, so whatever a crash
leaves is either a report or a temporary file nobody reads. Every call blocks for a disk: call it in a thread; two
trainers may end at once, so several may be in it together.
"""

import contextlib
import logging
import os
import threading
from pathlib import Path

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.cutting import tail_of
from simpletuner_fleet.core.worker_errors import SpoolFull
from simpletuner_fleet.protocol.messages import FINAL_REPORTS, StatusReport

log = logging.getLogger(__name__)

MAX_RECORDS = 4096
MAX_RECORD_BYTES = 256 * 1024
MAX_TEXT_CHARS = 16 * 1024
SUFFIX = ".report"


class Spooled(Struct, frozen=True, kw_only=True):
    number: int
    job_id: str
    report: StatusReport


class Spool:
    def __init__(self, path: Path, max_records: int = MAX_RECORDS) -> None:
        self._path = path
        self._max_records = max_records
        self._appending = threading.Lock()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for torn in path.glob("*.tmp"):
            torn.unlink(missing_ok=True)
        self._next = max(self._numbers(), default=0) + 1

    def append(self, job_id: str, report: StatusReport) -> Spooled:
        """Returns when the report is durable."""
        with self._appending:
            self._make_room(report)
            record = Spooled(number=self._next, job_id=job_id, report=report)
            content = msgspec.json.encode(record)
            if len(content) > MAX_RECORD_BYTES:
                record = Spooled(number=self._next, job_id=job_id, report=_shortened(report))
                content = msgspec.json.encode(record)
            self._write(record.number, content)
            self._next += 1
            return record

    def pending(self) -> list[Spooled]:
        """Returns the reports in the order they were appended."""
        records = (self._read(number) for number in self._numbers())
        return [record for record in records if record is not None]

    def remove(self, number: int) -> None:
        """Removes what was delivered, unsynced: one that a power cut brings back is delivered again, and is old news."""
        self._file(number).unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._numbers())

    def _numbers(self) -> list[int]:
        stems = (name.removesuffix(SUFFIX) for name in os.listdir(self._path) if name.endswith(SUFFIX))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _file(self, number: int) -> Path:
        return self._path / f"{number:012d}{SUFFIX}"

    def _write(self, number: int, content: bytes) -> None:
        temporary = self._path / f"{number:012d}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._file(number))
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read(self, number: int) -> Spooled | None:
        file = self._file(number)
        try:
            return msgspec.json.decode(file.read_bytes(), type=Spooled)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("the report in %s cannot be read, and is left where it is: %s", file, error.strerror)
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("the report in %s cannot be read and is set aside: %s", file, error)
            with contextlib.suppress(OSError):  # the next start says so again, then
                file.rename(file.with_suffix(".bad"))
            return None

    def _make_room(self, newcomer: StatusReport) -> None:
        """Removes a progress report where the spool is full. Outcomes are worth more, and are never removed."""
        if len(self) < self._max_records:
            return
        for record in self.pending():
            if record.report.status not in FINAL_REPORTS:
                self.remove(record.number)
                return
        raise SpoolFull(
            f"{self._max_records} outcomes wait for the orchestrator; '{newcomer.status}' was not kept."
        )


def _shortened(report: StatusReport) -> StatusReport:
    return msgspec.structs.replace(
        report,
        progress=None,
        error=report.error and report.error[:MAX_TEXT_CHARS],
        last_lines=report.last_lines and tail_of(report.last_lines, MAX_TEXT_CHARS),
    )
