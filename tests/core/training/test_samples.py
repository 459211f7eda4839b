"""Pictures of a training: in which order, and how long."""

import pytest

from simpletuner_fleet.core.training.checkpoint import FileEntry, Manifest, StoredManifest
from simpletuner_fleet.core.training.samples import (
    MOST,
    Caption,
    caption_in,
    drawn_order,
    step_in,
    with_earlier,
)


def picture(path: str, content: str = "a") -> FileEntry:
    return FileEntry(path=path, size=5, sha256=content * 64)


def drawn(*steps: int, content: str = "a") -> tuple[FileEntry, ...]:
    return tuple(picture(f"validation_images/step_{step}_cat_0_64x64.png", content) for step in steps)


def samples(*files: FileEntry, name: str = "samples") -> Manifest:
    return Manifest(kind="artifact", name=name, files=files)


def stored(*files: FileEntry, epoch: int = 1, name: str = "samples") -> StoredManifest:
    return StoredManifest(
        id=f"m_{epoch}",
        job_id="j_1",
        attempt_id="a_1",
        attempt_number=1,
        epoch=epoch,
        kind="artifact",
        name=name,
        files=files,
        total_bytes=0,
        created_at=float(epoch),
        worker_name="w",
    )


def steps(manifest: Manifest) -> list[int | None]:
    return [step_in(file.path) for file in manifest.files]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("validation_images/step_200_cat_0_1024x1024.png", 200),
        ("samples/step-00300.png", 300),
        ("validation_images/Step=7/cat_2.webp", 7),
        ("prompt_2_steps_40.jpg", 40),
        ("samples.png", None),
        ("sample_12.png", None),
        ("footstep.png", None),
        ("step_9999999999999999.png", None),
    ],
)
def test_a_name_tells_its_step(path: str, step: int | None) -> None:
    assert step_in(path) == step


def test_pictures_are_ordered_by_step_not_by_letters() -> None:
    names = ["step_1000_a.png", "step_90_a.png", "x_step_200.png", "step_90_b.png"]
    in_order = ["step_90_a.png", "step_90_b.png", "x_step_200.png", "step_1000_a.png"]
    assert sorted(names, key=drawn_order) == in_order
    assert sorted(["s_10.png", "s_9.png"], key=drawn_order) == ["s_9.png", "s_10.png"]
    assert drawn_order("samples.png", 500) > drawn_order("step_400.png", 500)


def test_what_an_earlier_attempt_drew_stays_and_the_same_place_is_drawn_anew() -> None:
    before = stored(*drawn(100, 200, 300))
    merged = with_earlier(samples(*drawn(300, 400, content="b")), [before])
    assert steps(merged) == [300, 400, 200, 100]
    assert {file.sha256[0] for file in merged.files if step_in(file.path) == 300} == {"b"}
    newer = stored(*drawn(250), epoch=2)
    assert steps(with_earlier(samples(*drawn(400)), [before, newer])) == [400, 250]


def test_there_is_room_for_so_many_and_the_last_drawn_stay() -> None:
    before = stored(*drawn(*range(MOST)))
    assert steps(with_earlier(samples(*drawn(100, 101)), [before])) == [100, 101, *range(MOST - 1, 1, -1)]
    many = samples(*drawn(*range(1000, 1000 + 2 * MOST)))
    assert with_earlier(many, [before]) == many


def test_only_pictures_stay_and_only_where_they_are_in_nobodys_way() -> None:
    before = stored(picture("notes.txt"), picture("samples/a.png"), picture("b.png/c.png"))
    assert [file.path for file in with_earlier(samples(picture("b.png")), [before]).files] == [
        "b.png",
        "samples/a.png",
    ]


def test_other_artifacts_are_left_as_they_are() -> None:
    output = samples(*drawn(1), name="output")
    assert with_earlier(output, [stored(*drawn(2), name="output"), stored(*drawn(3))]) == output


def test_a_name_tells_the_prompt_its_number_and_its_size() -> None:
    assert caption_in("validation_images/step_200_cat_0_1024x1024.png") == Caption("cat", 0, "1024x1024")
    assert caption_in("step_200_old_man_3_512x768.png") == Caption("old_man", 3, "512x768")
    assert caption_in("step_90_cat.jpg") == Caption("cat", 0, "")
    assert caption_in("step_90.png") == Caption("", 0, "")
    assert caption_in("samples.png") == Caption("samples", 0, "")
    assert caption_in("cat-step100.png") == Caption("cat", 0, "")
    assert caption_in("cat_step_100.png") == Caption("cat", 0, "")
