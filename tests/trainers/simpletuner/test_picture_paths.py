"""A checkpoint that was made elsewhere names its pictures by where they lie on this worker."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.simpletuner.picture_paths import follow_pictures
from simpletuner_fleet.trainers.simpletuner.picture_views import show_pictures

ELSEWHERE = "/other/worker/caches/1f-0/pictures/cats-12"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A dataset with a folder of its own in it, and one file that was added since the checkpoint."""
    made = Paths(
        attempt_dir=tmp_path / "job",
        config_dir=tmp_path / "job/config",
        output_dir=tmp_path / "job/output",
        cache_dir=tmp_path / "kept",
    )
    made.config_dir.mkdir(parents=True)
    (tmp_path / "cats" / "deep").mkdir(parents=True)
    for name in ("a.png", "deep/b.png", "deep/new.png"):
        (tmp_path / "cats" / name).touch()
    backends = [
        {"id": "cats", "instance_data_dir": str(tmp_path / "cats")},
        {"id": "texts", "dataset_type": "text_embeds"},
    ]
    made.dataloader_file.write_bytes(msgspec.json.encode(backends))
    return made


def saved(paths: Paths, *names: str, folder: str = ELSEWHERE, dataset: str = "cats") -> Path:
    """As both releases write it (`./dev real-trainer resumes`)."""
    state = {
        "aspect_ratio_bucket_indices": {"1.0": [f"{folder}/{name}" for name in names]},
        "buckets": ["1.0"],
        "batch_size": 1,
        "seen_images": {f"{folder}/{names[0]}": True},
    }
    file = paths.output_dir / "checkpoint-4" / f"training_state-{dataset}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(state))
    return file


def read(file: Path) -> Any:
    return msgspec.json.decode(file.read_bytes())


def test_every_picture_is_named_by_the_folder_of_this_worker(paths: Paths, tmp_path: Path) -> None:
    file = saved(paths, "a.png", "deep/b.png", "gone.png")
    follow_pictures(paths, paths.output_dir)
    here = str(tmp_path / "cats")
    assert read(file) == {
        "aspect_ratio_bucket_indices": {"1.0": [f"{here}/a.png", f"{here}/deep/b.png", f"{here}/gone.png"]},
        "buckets": ["1.0"],
        "batch_size": 1,
        "seen_images": {f"{here}/a.png": True},
    }


def test_pictures_that_all_lie_deeper_are_found(paths: Paths, tmp_path: Path) -> None:
    file = saved(paths, "deep/b.png")
    follow_pictures(paths, paths.output_dir)
    assert list(read(file)["seen_images"]) == [str(tmp_path / "cats/deep/b.png")]


def test_they_follow_into_the_folder_of_links_behind_a_wall(paths: Paths) -> None:
    file = saved(paths, "a.png", "deep/b.png")
    show_pictures(paths, lambda folder: False)
    follow_pictures(paths, paths.output_dir)
    (seen,) = read(file)["seen_images"]
    assert seen.startswith(str(paths.cache_dir))
    assert Path(seen).is_symlink()


def test_a_file_that_an_earlier_attempt_has_too_is_not_changed_there(paths: Paths, tmp_path: Path) -> None:
    file = saved(paths, "a.png")
    os.link(file, tmp_path / "earlier.json")
    follow_pictures(paths, paths.output_dir)
    assert list(read(tmp_path / "earlier.json")["seen_images"]) == [f"{ELSEWHERE}/a.png"]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("dataset", ["dogs", "texts"])
def test_other_datasets_and_unknown_pictures_stay_as_they_are(paths: Paths, dataset: str) -> None:
    other, unknown = saved(paths, "a.png", dataset=dataset), saved(paths, "x.png", "y.png")
    before = [other.read_bytes(), unknown.read_bytes()]
    follow_pictures(paths, paths.output_dir)
    assert [other.read_bytes(), unknown.read_bytes()] == before


@pytest.mark.parametrize(
    "content", [b"", b"[", b"3", b'["\xff"]', b'{"seen_images": ["/"]}', b'{"seen_images": {"": 1}}']
)
def test_what_is_no_list_of_pictures_is_left_to_the_trainer(paths: Paths, content: bytes) -> None:
    file = saved(paths, "a.png")
    file.write_bytes(content)
    follow_pictures(paths, paths.output_dir)
    assert file.read_bytes() == content


def test_a_link_that_an_earlier_attempt_laid_is_neither_written_through_nor_followed(
    paths: Paths, tmp_path: Path
) -> None:
    """In a folder that is shared, a job knows the names of its next attempts' folders."""
    victim = tmp_path / "passwd"
    victim.write_text("root:x:0:0")
    output = tmp_path / "shared" / "j_1-2"
    file = saved(replace(paths, output_dir=output), "a.png", "deep/b.png")
    (file.parent / f".{file.name}.new").symlink_to(victim)
    follow_pictures(paths, output)
    assert victim.read_text() == "root:x:0:0"
    assert str(tmp_path / "cats" / "a.png") in file.read_text()

    elsewhere = tmp_path / "elsewhere"
    file.parent.rename(elsewhere)
    foreign = (elsewhere / file.name).write_bytes(msgspec.json.encode([f"{ELSEWHERE}/a.png"]))
    file.parent.symlink_to(elsewhere)
    follow_pictures(paths, output)
    assert (elsewhere / file.name).stat().st_size == foreign
    assert ELSEWHERE in (elsewhere / file.name).read_text()
