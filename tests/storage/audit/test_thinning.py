"""Thinning takes no proof away."""

from pathlib import Path
from threading import Lock

import msgspec
import pytest

from simpletuner_fleet.protocol.messages import AuditHead
from simpletuner_fleet.storage.audit.thinning import HOUR_S, IsOurs, head_in, leave_out, spare_heads

OURS, ANOTHERS = "ours", "another's"


def head(hour: float, seq: int, signature: str = OURS) -> AuditHead:
    return AuditHead(seq=seq, hash="aa", root="bb", at=hour * HOUR_S, signature=signature)


def is_ours(one: AuditHead) -> bool:
    return one.signature == OURS


def thin(file: Path, before: float, is_ours: IsOurs) -> int:
    return leave_out(file, spare_heads(file, before, is_ours), Lock())


def written(file: Path, *heads: AuditHead, rest: bytes = b"") -> Path:
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in heads) + rest)
    return file


def kept(file: Path) -> list[int]:
    return [one.seq for line in file.read_bytes().splitlines() if (one := head_in(line))]


def test_of_each_old_hour_the_highest_head_stays_and_of_the_newest_all(tmp_path: Path) -> None:
    file = written(
        tmp_path / "heads", head(1.1, 10), head(1.2, 11), head(2.1, 12), head(5.1, 13), head(5.2, 14)
    )
    assert thin(file, 5 * HOUR_S, is_ours) == 1
    assert kept(file) == [11, 12, 13, 14]
    assert thin(file, 5 * HOUR_S, is_ours) == 0
    assert [one.name for one in tmp_path.iterdir()] == ["heads"]


def test_a_head_from_before_a_restore_and_one_of_another_key_stay(tmp_path: Path) -> None:
    file = written(
        tmp_path / "heads",
        head(1.1, 900),
        head(1.2, 1000),
        head(1.3, 950),
        head(1.4, 2000, ANOTHERS),
        rest=b'{"seq":7,"hash":"\xff"}\nhalf a li',
    )
    assert thin(file, 5 * HOUR_S, is_ours) == 2
    assert kept(file) == [1000, 2000]
    assert file.read_bytes().endswith(b"\nhalf a li"), "what cannot be read is left to whoever can"


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    place = written(tmp_path / "elsewhere", head(1.1, 1), head(1.2, 2))
    link = tmp_path / "heads"
    link.symlink_to(place)
    assert thin(link, 5 * HOUR_S, is_ours) == 1
    assert link.is_symlink()
    assert kept(place) == [2]


def test_a_file_that_cannot_be_replaced_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    file = written(tmp_path / "heads", head(1.1, 1), head(1.2, 2))
    monkeypatch.setattr("os.replace", refuses)
    with pytest.raises(PermissionError):
        thin(file, 5 * HOUR_S, is_ours)
    assert kept(file) == [1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["heads"]


def test_whoever_may_read_the_file_may_do_so_afterwards(tmp_path: Path) -> None:
    file = written(tmp_path / "heads", head(1.1, 1), head(1.2, 2))
    file.chmod(0o640)
    assert thin(file, 5 * HOUR_S, is_ours) == 1
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_line_that_has_become_another_stays(tmp_path: Path) -> None:
    file = written(tmp_path / "heads", head(1.1, 1), head(1.2, 2))
    spare = spare_heads(file, 5 * HOUR_S, is_ours)
    written(file, head(1.1, 7), head(1.2, 8))
    assert leave_out(file, spare, Lock()) == 0
    assert kept(file) == [7, 8]
