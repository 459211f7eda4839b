"""What jobs see of a disk, told from the places that were granted and from the permissions of files."""

from pathlib import Path

import pytest

from simpletuner_fleet.agent.isolation.path_access import PathAccess
from simpletuner_fleet.agent.isolation.places import Place


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    for name in ("read/model", "write", "read/inner", "state"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "read/model/weights").write_text("1")
    return tmp_path


def access_to(disk: Path, *, own_user: bool = False) -> PathAccess:
    places: list[Place] = [
        (str(disk / "read"), str(disk / "read"), "ro"),
        (str(disk / "read/inner"), str(disk / "read/inner"), "hide"),
        (str(disk / "write"), str(disk / "write"), "rw"),
        (str(disk / "state"), str(disk / "state"), "hide"),
    ]
    return PathAccess(places, own_user)


def test_the_deepest_place_says_what_is_seen_and_what_may_be_written(disk: Path) -> None:
    seen = access_to(disk)
    assert seen.sees(str(disk / "read/model/weights"))
    assert not seen.sees(str(disk / "read/inner/x"))
    assert not seen.sees(str(disk / "elsewhere"))
    assert not seen.may_write(str(disk / "read/model"))
    assert seen.may_write(str(disk / "write"))


def test_a_link_is_seen_where_both_its_name_and_its_end_are(disk: Path) -> None:
    (disk / "elsewhere").mkdir()
    (disk / "read/out").symlink_to(disk / "elsewhere")
    (disk / "read/round").symlink_to(disk / "write")
    (disk / "alias").symlink_to(disk / "read")
    seen = access_to(disk)
    assert not seen.sees(str(disk / "read/out"))
    assert seen.sees(str(disk / "read/round"))
    assert not seen.sees(str(disk / "alias/model"))


def test_a_link_of_somebodys_own_into_the_system_is_not_seen(disk: Path) -> None:
    """Only those of the root folder are the same behind the wall: /bin, /lib."""
    (disk / "python").symlink_to("/usr/bin/env")
    assert not PathAccess([("/usr", "/usr", "ro")], own_user=False).sees(str(disk / "python"))


def test_what_lies_in_a_closed_folder_is_the_same_whether_it_is_there_or_not(disk: Path) -> None:
    (disk / "read").chmod(0o755)
    (disk / "read/model").chmod(0o700)
    mine = access_to(disk, own_user=True)
    for name in ("weights", "nothing", "nothing/at/all"):
        assert mine.unreadable(str(disk / "read/model" / name), with_content=True) == str(disk / "read/model")
    assert mine.unreadable(str(disk / "read/nothing/here"), with_content=True) is None


def test_a_user_of_its_own_is_bound_by_permissions(disk: Path) -> None:
    (disk / "write").chmod(0o755)
    assert not access_to(disk, own_user=True).may_write(str(disk / "write"))
    (disk / "write").chmod(0o777)
    assert access_to(disk, own_user=True).may_write(str(disk / "write"))


def test_what_is_granted_and_closed_is_found_however_deep(disk: Path) -> None:
    for folder in (disk / "read", disk / "read/model", disk / "read/inner"):
        folder.chmod(0o755)
    weights = disk / "read/model/weights"
    weights.chmod(0o644)
    mine, anybody = access_to(disk, own_user=True), access_to(disk)
    assert mine.unreadable(str(disk / "read"), with_content=True) is None
    weights.chmod(0o600)
    assert mine.unreadable(str(disk / "read"), with_content=True) == str(weights)
    assert mine.unreadable(str(weights), with_content=False) == str(weights)
    assert mine.unreadable(str(disk / "read"), with_content=False) is None
    assert anybody.unreadable(str(disk / "read"), with_content=True) is None
    (disk / "read").chmod(0o700)
    assert mine.unreadable(str(weights), with_content=True) == str(disk / "read")
