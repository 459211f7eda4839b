"""Folders as deep as only a hostile job lays them out: longer than any path may be, deeper than Python calls itself."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simpletuner_fleet.trainers import checkpoints
from simpletuner_fleet.trainers.checkpoints import (
    CheckpointHabits,
    complete_checkpoints,
    files_beneath,
    other_files,
    pictures_beneath,
    rank_logs_beneath,
)
from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.job_trees import entries_beneath, make_folder, remove_tree

DEEP = 1100
STEP = "d" * 40


def dig(folder: Path) -> None:
    """A step at a time, since no path leads there."""
    folder.mkdir(parents=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir(STEP, dir_fd=here)
        deeper = os.open(STEP, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("deepest", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job's, with a folder `deep` in it."""
    folder = tmp_path_factory.mktemp("output")
    dig(folder / "deep")
    yield folder
    remove_tree(folder)


def test_what_is_too_deep_is_an_error_like_any_other(output: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        list(entries_beneath(output))
    with pytest.raises(OSError, match="too long"):
        list(files_beneath(output / "deep", output / "deep"))


def test_what_is_too_deep_can_be_removed_and_what_it_links_to_stays(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    dig(tmp_path / "tree" / "deep")
    (tmp_path / "tree" / "closed").mkdir()
    (tmp_path / "tree" / "closed" / "within").mkdir()
    (tmp_path / "tree" / "closed").chmod(0)
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    remove_tree(tmp_path / "tree")
    assert os.listdir(tmp_path) == ["outside"]
    remove_tree(tmp_path / "nothing")


def test_folders_are_walked_in_order_and_links_are_not_followed(tmp_path: Path) -> None:
    for name in ("b/c", "a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b")
    names = [str(Path(entry.path).relative_to(tmp_path)) for entry in entries_beneath(tmp_path)]
    assert names == ["a", "b", "a/file", "a/link", "b/c", "b/c/file"]


def test_the_rest_of_the_output_is_found_and_what_is_missed_is_said(output: Path) -> None:
    (output / "model.bin").touch()
    missed: list[str] = []
    assert "model.bin" in [file.name for file in other_files(output, missed)]
    assert missed == ["'deep': File name too long"]


def test_what_is_missed_is_said_in_a_few_words_that_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any bytes may name a folder, and a job may close very many of them."""
    for number in range(300):
        os.mkdir(os.fsencode(tmp_path) + b"/closed-\xff-%03d" % number)

    def closed(path: Path, most: int) -> Iterator[object]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(checkpoints, "entries_beneath", closed)
    paths = Paths(attempt_dir=tmp_path, config_dir=tmp_path, output_dir=tmp_path)
    (artifact,) = CheckpointHabits().artifacts(paths)
    assert artifact.missed.encode().startswith(b"'closed-\\udcff-000': Permission denied; ")
    assert "297 more" in artifact.missed
    assert len(artifact.missed) < 500


def test_of_very_many_files_only_so_many_are_looked_at_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of them would take the memory of the agent, which all jobs share."""
    monkeypatch.setattr(checkpoints, "MOST_FILES", 10)
    for name in ("a-cache", "checkpoint-10", "few"):
        (tmp_path / name).mkdir()
    for number in range(12):
        (tmp_path / "a-cache" / f"{number}.pt").touch()
    (tmp_path / "few" / "model.bin").touch()
    (tmp_path / "checkpoint-10" / ".guard").touch()
    paths = Paths(attempt_dir=tmp_path, config_dir=tmp_path, output_dir=tmp_path)
    (artifact,) = CheckpointHabits().artifacts(paths)
    assert [file.name for file in artifact.files] == ["model.bin"]
    assert artifact.missed == "'a-cache': too many files to look at"
    assert [one.step for one in complete_checkpoints(tmp_path)] == [10]
    for number in range(20):
        (tmp_path / f"{number}.txt").touch()
    (artifact,) = CheckpointHabits().artifacts(paths)
    assert len(artifact.files) <= 11
    assert artifact.missed.startswith(f"the folder {tmp_path.name}: too many files to look at")


def test_logs_of_ranks_are_looked_for_where_launchers_put_them(output: Path) -> None:
    for name in ("rank-1.log", "run/attempt_0/2/stdout.log"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).touch()
    assert sorted(rank_logs_beneath(output)) == [1, 2]


def test_logs_of_ranks_are_looked_for_in_no_other_folder_and_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's links may lead to anywhere on the worker, and it may make as many files as it likes."""
    ranks, elsewhere = tmp_path / "ranks", tmp_path / "elsewhere"
    for folder in (ranks, elsewhere):
        folder.mkdir()
        (folder / "stdout.log").touch()
    (ranks / "rank-3.log").symlink_to("stdout.log")
    (ranks / "1").symlink_to(elsewhere)
    assert sorted(rank_logs_beneath(ranks)) == [3]
    for rank in range(4, 40):
        (ranks / f"rank-{rank}.log").touch()
    monkeypatch.setattr(checkpoints, "MOST_RANK_LOG_ENTRIES", 20)
    assert 17 <= len(rank_logs_beneath(ranks)) <= 20


def test_a_checkpoint_that_is_a_link_is_none(tmp_path: Path) -> None:
    """It would tell what is there elsewhere on the worker."""
    for name in ("elsewhere", "checkpoint-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".guard").touch()
    (tmp_path / "checkpoint-2").symlink_to(tmp_path / "elsewhere")
    assert [one.name for one in complete_checkpoints(tmp_path)] == ["checkpoint-1"]


def test_what_stands_where_a_folder_belongs_makes_room(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    make_folder(tmp_path / "file" / "within")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    make_folder(tmp_path / "link")
    assert (tmp_path / "file" / "within").is_dir()
    assert not (tmp_path / "link").is_symlink()
    assert not (tmp_path / "nowhere").exists()


def test_a_look_for_checkpoints_among_very_many_files_takes_little_longer_than_their_names(
    tmp_path: Path,
) -> None:
    """It is taken each second, and whoever waits for it keeps all other threads of the worker waiting."""
    for number in range(30_000):
        os.close(os.open(tmp_path / f"latent-{number}", os.O_CREAT))
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-7" / ".guard").touch()
    (tmp_path / "sample.png").touch()

    def seconds(look: Callable[[], object]) -> float:
        """The least of a few: others work on this machine, too."""
        took = []
        for _ in range(5):
            began = time.process_time()
            look()
            took.append(time.process_time() - began)
        return min(took)

    names_alone = seconds(lambda: sorted(os.listdir(tmp_path)))
    assert [one.step for one in complete_checkpoints(tmp_path)] == [7]
    assert list(pictures_beneath(tmp_path)) == [tmp_path / "sample.png"]
    assert seconds(lambda: complete_checkpoints(tmp_path)) < 5 * names_alone
    assert seconds(lambda: list(pictures_beneath(tmp_path))) < 5 * names_alone
