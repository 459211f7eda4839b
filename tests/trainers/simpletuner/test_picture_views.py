"""Pictures that the trainer may not write beside are shown in a folder of its own, which outlives the attempt."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.simpletuner.picture_views import show_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.png", "a.txt", "deep/b.png", "aspect_ratio_bucket_indices_cats.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(
        attempt_dir=tmp_path / "job",
        config_dir=tmp_path / "job/config",
        output_dir=tmp_path / "job/output",
        cache_dir=tmp_path / "kept",
    )
    made.config_dir.mkdir(parents=True)
    return made


def shown(paths: Paths, *backends: Any, may_write: bool = False) -> list[Any]:
    paths.dataloader_file.write_bytes(msgspec.json.encode(backends))
    show_pictures(paths, lambda folder: may_write)
    return list(msgspec.json.decode(paths.dataloader_file.read_bytes()))


def test_each_picture_is_a_link_and_the_trainer_writes_beside_it(paths: Paths, pictures: Path) -> None:
    cats = {"id": "cats", "type": "local", "instance_data_dir": str(pictures)}
    texts = {"id": "texts", "dataset_type": "text_embeds"}
    first, second = shown(paths, cats, texts)
    view = Path(first["instance_data_dir"])
    assert view.is_relative_to(paths.cache_dir or "")
    assert view.name.startswith("data-"), "an error names its pictures by this path"
    assert (first["id"], second) == ("cats", texts)
    files = {str(path.relative_to(view)): path.read_text() for path in view.rglob("*") if path.is_file()}
    assert files == {"a.png": "a.png", "a.txt": "a.txt", "deep/b.png": "deep/b.png"}

    (view / "aspect_ratio_bucket_indices_cats.json").write_text("its own")
    (pictures / "a.png").unlink()
    (pictures / "c.png").write_text("new")
    assert shown(paths, cats, texts)[0] == first, "the place stays, or its index would be of no use"
    assert (view / "aspect_ratio_bucket_indices_cats.json").read_text() == "its own"
    assert not (view / "a.png").is_symlink()
    assert (view / "c.png").read_text() == "new"


def test_where_it_may_write_and_what_is_the_attempts_own_stays_as_it_is(paths: Paths, pictures: Path) -> None:
    cats = {"id": "cats", "instance_data_dir": str(pictures)}
    assert shown(paths, cats, may_write=True) == [cats]
    own = [
        {"instance_data_dir": str(paths.cache_dir)},
        {"instance_data_dir": str(paths.config_dir)},
        {"instance_data_dir": "/no/such/folder"},
        {"instance_data_dir": "relative"},
        {"instance_data_dir": 3},
        "nonsense",
    ]
    assert shown(paths, *own) == own


def test_a_config_without_a_dataloader_or_with_another_is_left_alone(paths: Paths) -> None:
    show_pictures(paths, lambda folder: False)
    assert not paths.dataloader_file.exists()
    paths.dataloader_file.write_text("{not json")
    show_pictures(paths, lambda folder: False)
    assert paths.dataloader_file.read_text() == "{not json"
