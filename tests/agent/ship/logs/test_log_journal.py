"""What is recorded of an output, also where there is no room for it."""

import errno
import os
import struct
from pathlib import Path

import pytest

from simpletuner_fleet.agent.ship.logs.log_fold import ByteRange
from simpletuner_fleet.agent.ship.logs.log_journal import Journal, NotRecorded
from tests.agent.attempts.test_full_disk import seen_on_a_small_disk
from tests.agent.log_files import all_bytes, scanned, stream_of

RECORD_BYTES = 32


def opened(path: Path) -> Journal:
    journal = Journal(path)
    journal.open()
    return journal


def test_what_could_not_be_recorded_whole_is_not_there_for_this_process_or_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path / "index")
    journal.add(0, [ByteRange(0, 10, 1.0, False)])
    room = [2 * RECORD_BYTES]
    write = os.pwrite

    def pwrite(file: int, data: memoryview, place: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(file, data[: room[0]], place)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(NotRecorded, match="No space left on device"):
        journal.add(0, [ByteRange(at, at + 10, 2.0, False) for at in (10, 20, 30)])
    assert journal.size == 10
    room[0] = RECORD_BYTES
    journal.add(0, [ByteRange(10, 40, 3.0, False)])
    assert journal.size == 40
    again = opened(tmp_path / "index")
    assert again.size == 40
    assert [(record.raw, record.length) for record in again.records_at(0)] == [(0, 10), (10, 30)]
    journal.close()
    again.close()


def test_a_journal_that_could_not_be_opened_can_be_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "attempt" / "index")
    with pytest.raises(FileNotFoundError):
        journal.open()
    journal.close()
    assert journal.size == 0
    assert list(journal.records_at(0)) == []
    (tmp_path / "attempt").mkdir()
    journal.open()
    journal.add(0, [ByteRange(0, 7, 1.0, False)])
    assert journal.size == 7
    journal.close()


def test_as_much_is_recorded_at_once_as_files_can_have_and_records_of_older_workers_are_understood(
    tmp_path: Path,
) -> None:
    with (tmp_path / "index").open("wb") as file:
        file.write(struct.pack("<BBxxIQQd", 3, 1, 2**32 - 1, 7, 0, 5.0))
    journal = opened(tmp_path / "index")
    journal.add(0, [ByteRange(10, 10 + 2**47, 6.0, False), ByteRange(2**47, 2**47 + 1, 7.0, True)])
    journal.close()
    later = opened(tmp_path / "index")
    assert [tuple(record) for record in later.records_at(0)] == [
        (3, True, 2**32 - 1, 7, 0, 5.0),
        (0, False, 2**47, 10, 2**32 - 1, 6.0),
        (0, True, 1, 2**47, 2**47 + 2**32 - 1, 7.0),
    ]
    assert later.size == 2**47 + 2**32
    later.close()


@pytest.mark.parametrize(
    ("kept", "spoiled"),
    [
        (3, bytes(5 * RECORD_BYTES)),
        (1, bytes(RECORD_BYTES)),
        (0, b"\xff" * 2 * RECORD_BYTES),
        (2, struct.pack("<BBHIQQd", 0, 0, 0, 10, 20, 20, float("nan"))),
        (2, struct.pack("<BBHIQQd", 0, 0, 0, 10, 2**60, 2**60, 1.0)),
    ],
)
def test_what_a_disk_has_spoiled_is_not_gone_on_from(tmp_path: Path, kept: int, spoiled: bytes) -> None:
    journal = opened(tmp_path / "index")
    journal.add(0, [ByteRange(at, at + 10, float(at), False) for at in (0, 10, 20)])
    journal.close()
    whole = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(whole[: kept * RECORD_BYTES] + spoiled + whole[kept * RECORD_BYTES :])
    later = opened(tmp_path / "index")
    assert (later.size, later.resumed) == (10 * kept, kept > 0)
    later.add(0, [ByteRange(10 * kept, 10 * kept + 5, 9.0, False)])
    assert [record.raw for record in later.records_at(0)] == [10 * at for at in range(kept + 1)]
    later.close()


@pytest.mark.parametrize("spoiled", [bytes(2 * RECORD_BYTES), b"\xff" * 2 * RECORD_BYTES])
def test_a_log_whose_journal_is_spoiled_is_sent_to_its_end(tmp_path: Path, spoiled: bytes) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"a line\n" * 100)
    scanned(stream_of(log)).close()
    log.with_suffix(".index").write_bytes(spoiled)
    again = scanned(stream_of(log), ended=True)
    assert all_bytes(again, ended=True, start=350) == b"a line\n" * 50
    again.close()


def test_the_end_of_a_job_that_has_filled_the_disk_is_noted(tmp_path: Path) -> None:
    """Its folder is removed once its log has arrived: without that nobody would make room for it."""
    seen = seen_on_a_small_disk(tmp_path, "tests.agent.ship.logs.full_disk_story")
    assert len(seen) == 6
    assert {how for hows in seen.values() for how in hows} == {"noted"}
