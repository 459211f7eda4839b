from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simpletuner_fleet.agent.ship.spool import MAX_RECORD_BYTES, Spool
from simpletuner_fleet.core.worker_errors import SpoolFull
from simpletuner_fleet.protocol.messages import ReportStatus, StatusReport


def completed(epoch: int = 1) -> StatusReport:
    return StatusReport(status=ReportStatus.COMPLETED, epoch=epoch, exit_code=0)


def running(step: int) -> StatusReport:
    return StatusReport(status=ReportStatus.RUNNING, epoch=1, progress={"step": step})


def test_reports_come_back_in_the_order_they_were_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for epoch in range(1, 12):
        spool.append(f"j_{epoch}", completed(epoch))
    assert [record.job_id for record in spool.pending()] == [f"j_{epoch}" for epoch in range(1, 12)]
    assert spool.pending()[4].report == completed(5)


def test_a_delivered_report_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    first, second = spool.append("j_1", completed()), spool.append("j_2", completed())
    spool.remove(first.number)
    spool.remove(first.number)
    assert spool.pending() == [second]


def test_a_new_agent_finds_what_the_old_one_kept_and_goes_on_counting(tmp_path: Path) -> None:
    before = Spool(tmp_path).append("j_1", completed())
    spool = Spool(tmp_path)
    after = spool.append("j_2", completed())
    assert after.number > before.number
    assert spool.pending() == [before, after]


@pytest.mark.parametrize("length", [0, 1, 10, 40])
def test_a_write_torn_at_any_byte_is_no_report(tmp_path: Path, length: int) -> None:
    kept = Spool(tmp_path).append("j_1", completed())
    whole = next(tmp_path.glob("*.report")).read_bytes()
    (tmp_path / "000000000002.tmp").write_bytes(whole[:length])
    spool = Spool(tmp_path)
    assert spool.pending() == [kept]
    assert not list(tmp_path.glob("*.tmp"))


def test_every_prefix_of_a_record_that_a_bad_disk_leaves_is_set_aside(tmp_path: Path) -> None:
    whole_file = tmp_path / "whole"
    Spool(whole_file).append("j_1", completed())
    whole = next(whole_file.glob("*.report")).read_bytes()
    for length in range(len(whole)):
        folder = tmp_path / str(length)
        spool = Spool(folder)
        kept = spool.append("j_good", completed())
        (folder / "000000000000.report").write_bytes(whole[:length])
        assert spool.pending() == [kept]
        assert [file.name for file in folder.glob("*.bad")] == ["000000000000.bad"]


def test_a_record_with_bytes_that_are_no_text_is_set_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("j_bad", completed())
    record = next(tmp_path.glob("*.report"))
    record.write_bytes(record.read_bytes().replace(b"j_bad", b"j_\xff\xfe\xfd"))
    kept = spool.append("j_good", completed())
    assert Spool(tmp_path).pending() == [kept]
    assert [file.stem for file in tmp_path.glob("*.bad")] == [record.stem]


def test_a_report_that_the_disk_does_not_give_keeps_no_other_from_being_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "000000000000.report").mkdir()
    kept = Spool(tmp_path).append("j_good", completed())
    assert Spool(tmp_path).pending() == [kept]
    assert "000000000000.report cannot be read" in caplog.text


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.report").write_text("mine")
    spool = Spool(tmp_path)
    assert spool.pending() == []
    assert (tmp_path / "notes.report").exists()


def test_progress_makes_way_for_outcomes_and_outcomes_for_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_records=2)
    spool.append("j_1", completed())
    spool.append("j_2", running(1))
    spool.append("j_3", completed())
    assert [record.job_id for record in spool.pending()] == ["j_1", "j_3"]
    with pytest.raises(SpoolFull):
        spool.append("j_4", completed())
    assert len(spool) == 2


def test_a_report_too_large_is_shortened_and_keeps_its_outcome(tmp_path: Path) -> None:
    large = StatusReport(
        status=ReportStatus.FAILED,
        epoch=3,
        exit_code=1,
        error="e" * MAX_RECORD_BYTES,
        last_lines="l" * MAX_RECORD_BYTES,
    )
    spool = Spool(tmp_path)
    kept = spool.append("j_1", large)
    assert spool.pending() == [kept]
    assert (kept.report.status, kept.report.epoch, kept.report.exit_code) == (ReportStatus.FAILED, 3, 1)
    assert next(tmp_path.glob("*.report")).stat().st_size < MAX_RECORD_BYTES


def test_reports_are_for_nobody_else_to_read(tmp_path: Path) -> None:
    Spool(tmp_path / "spool").append("j_1", completed())
    assert next((tmp_path / "spool").glob("*.report")).stat().st_mode & 0o077 == 0


def test_outcomes_of_trainers_that_end_at_once_are_all_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        kept = list(threads.map(lambda epoch: spool.append(f"j_{epoch}", completed(epoch)), range(64)))
    assert len({record.number for record in kept}) == 64
    assert {record.job_id for record in spool.pending()} == {f"j_{epoch}" for epoch in range(64)}
