"""The journal of what was taken away: a crash costs it nothing that was answered, and damage is not taken for silence."""

from pathlib import Path

import pytest

from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.people.revocations import BackupMoment, Revocation, withdrawn_since
from simpletuner_fleet.core.restoring import least_epoch
from simpletuner_fleet.store.backup.journal import RevocationJournal, read_journal

LOST = Revocation(at=20.0, event=EventType.TOKEN_REVOKED, id="t_lost")
KEPT = Revocation(at=30.0, event=EventType.TOKEN_REVOKED, id="t_kept")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "revocations.jsonl"
    RevocationJournal(path, 10.0, 1).note([LOST])
    return path


def test_a_last_line_that_was_cut_off_was_never_answered_for(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])
    withdrawn = withdrawn_since(BackupMoment(15.0, 1), read_journal(file))
    assert (withdrawn.everything, withdrawn.tokens) == (False, frozenset())


def test_what_follows_a_line_that_was_cut_off_is_not_lost_with_it(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])
    RevocationJournal(file, 25.0, 2).note([KEPT])
    assert KEPT in read_journal(file)


def test_a_damaged_journal_tells_of_nothing_for_sure_so_nothing_is_believed(file: Path) -> None:
    RevocationJournal(file, 25.0, 2).note([KEPT])
    file.write_bytes(file.read_bytes().replace(b"t_lost", b"t_\xff\xff\xff\xff"))
    assert withdrawn_since(BackupMoment(15.0, 1), read_journal(file)).everything


def test_epochs_rise_with_every_restore() -> None:
    assert least_epoch(1_800_000_000.0) < least_epoch(1_800_000_001.0) < 2**53


def test_what_the_audit_log_knows_and_the_journal_does_not_is_noted_once(file: Path) -> None:
    journal = RevocationJournal(file, 25.0, 2)
    assert journal.newest_at() == 20.0
    for _ in range(2):
        journal.catch_up([LOST, KEPT])
    assert [one for one in read_journal(file) if one.event] == [LOST, KEPT]
