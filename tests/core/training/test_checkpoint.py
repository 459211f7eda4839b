from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import Invalid, StepBackwards, TooLarge
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import (
    SHA256_OF_NOTHING,
    CheckpointLimits,
    FileEntry,
    Manifest,
    StoredManifest,
    check_manifest,
    check_object,
    check_places,
    check_step_of_epoch,
    limits_of,
    newest_checkpoint,
    path_complaint,
    same_content,
    to_drop,
    total_bytes,
)

POLICY = Policy(max_manifest_files=3, max_object_bytes=1000)
SHA = "a" * 64


def file(path: str = "model.safetensors", **given: Any) -> FileEntry:
    return FileEntry(**{"path": path, "size": 10, "sha256": SHA, **given})


def manifest(*files: FileEntry, **given: Any) -> Manifest:
    fields: dict[str, Any] = {"kind": "checkpoint", "name": "checkpoint-10", "step": 10}
    return Manifest(**{**fields, "files": files or (file(),), **given})


def stored(number: int, **given: Any) -> StoredManifest:
    fields: dict[str, Any] = {
        "id": f"m_{number}",
        "job_id": "j_1",
        "attempt_id": "a_1",
        "attempt_number": 1,
        "epoch": 1,
        "kind": "checkpoint",
        "name": f"checkpoint-{number}",
        "step": number,
        "files": (file(),),
        "total_bytes": 10,
        "created_at": float(number),
        "worker_name": "gpu-1",
    }
    return StoredManifest(**{**fields, **given})


def ids(manifests: list[StoredManifest]) -> list[str]:
    return [one.id for one in manifests]


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/etc/passwd", "..", "../x", "a/../b", "a//b", "a/", "./a", "a/.", "a\\b", "a\0", "a\nb"),
        *("x" * 1025, "x" * 256, "ä" * 128, "\ud800", "a\u202eb"),
    ],
)
def test_a_path_that_could_lead_elsewhere_or_confuse_is_refused(path: str) -> None:
    assert path_complaint(path)
    with pytest.raises(Invalid) as refused:
        check_manifest(manifest(file(path)), POLICY)
    assert refused.value.params["errors"][0]["path"] == "$.manifest.files[0].path"


@pytest.mark.parametrize(
    "path",
    ["a", "unet/model 1.bin", "größe.txt", ".hidden", "...", "a/b/c/d", "a/" * 500 + "f"],
)
def test_an_ordinary_path_is_taken(path: str) -> None:
    check_manifest(manifest(file(path)), POLICY)


@given(st.text())
def test_every_path_that_is_taken_stays_beneath_its_folder(path: str) -> None:
    if path_complaint(path) is None:
        assert not path.startswith("/")
        assert not {"", ".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    "bad",
    [
        manifest(name=""),
        manifest(name="../x"),
        manifest(name=".hidden"),
        manifest(name="x" * 129),
        manifest(step=None),
        manifest(step=-1),
        manifest(file("a"), file("a")),
        manifest(file("a"), file("a/b")),
        manifest(file("a/b/c"), file("a")),
        manifest(file(sha256="A" * 64)),
        manifest(file(sha256="a" * 63)),
        manifest(file(size=-1)),
        manifest(file(size=0)),
        manifest(file(sha256=SHA256_OF_NOTHING)),
        Manifest(kind="artifact", name="model", files=()),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(bad: Manifest) -> None:
    with pytest.raises(Invalid):
        check_manifest(bad, POLICY)


def test_too_many_and_too_large_files_are_refused() -> None:
    with pytest.raises(TooLarge):
        check_manifest(manifest(*(file(str(at)) for at in range(4))), POLICY)
    with pytest.raises(TooLarge):
        check_object(SHA, 1001, POLICY)


def test_an_empty_file_and_an_artifact_without_a_step_are_fine() -> None:
    check_manifest(
        manifest(file(size=0, sha256=SHA256_OF_NOTHING), kind="artifact", name="model", step=None), POLICY
    )


def test_steps_never_go_backwards_within_an_epoch() -> None:
    known = [stored(10), stored(30, epoch=2), stored(90, kind="artifact")]
    check_step_of_epoch(manifest(step=10), 1, known)
    check_step_of_epoch(manifest(step=11), 1, known)
    check_step_of_epoch(manifest(step=5), 3, known)
    check_step_of_epoch(manifest(step=None, kind="artifact"), 1, known)
    with pytest.raises(StepBackwards):
        check_step_of_epoch(manifest(step=9), 1, known)


def test_the_same_content_is_known_again_in_any_order() -> None:
    a, b = file("a"), file("b")
    one = stored(10, files=(a, b))
    assert same_content(one, manifest(b, a))
    assert not same_content(one, manifest(a))
    assert not same_content(one, manifest(b, a, step=11))


def test_content_counts_once() -> None:
    assert total_bytes([file("a"), file("b"), file("c", sha256="b" * 64, size=5)]) == 15


def test_the_newest_checkpoint_has_the_highest_step_then_the_latest_time() -> None:
    assert newest_checkpoint([stored(99, kind="artifact")]) is None
    newest = newest_checkpoint([stored(10), stored(30), stored(31, step=30), stored(20)])
    assert newest
    assert newest.id == "m_31"


def test_retention_keeps_the_newest_checkpoints_and_every_artifact() -> None:
    kept = [stored(number) for number in (1, 2, 3, 4, 5)]
    final = stored(9, kind="artifact", name="model")
    assert ids(to_drop([*kept, final], 3)) == ["m_1", "m_2"]
    assert ids(to_drop([*kept, final], 0)) == ["m_1", "m_2", "m_3", "m_4"], "the newest always stays"
    assert ids(to_drop(kept, 3, in_use={"m_1"})) == ["m_2"]
    assert to_drop(kept[:2], 3) == []


def test_rolling_checkpoints_and_the_others_never_push_each_other_out() -> None:
    plain = [stored(number, name=f"checkpoint-{number}") for number in (1, 2, 3)]
    rolling = [stored(number, name=f"checkpoint-{number}-rolling") for number in (4, 5, 6)]
    assert ids(to_drop([*plain, *rolling], CheckpointLimits(3, 1))) == ["m_4", "m_5"]
    assert ids(to_drop([*plain, *rolling], CheckpointLimits(1, 3))) == ["m_1", "m_2"]


@pytest.mark.parametrize(
    ("name", "keep", "limits"),
    [
        ("checkpoint-5", 4, CheckpointLimits(4, 10)),
        ("checkpoint-5", None, CheckpointLimits(10, 10)),
        ("checkpoint-5", 0, CheckpointLimits(10, 10)),
        ("checkpoint-5", 99, CheckpointLimits(10, 10)),
        ("checkpoint-5-rolling", 1, CheckpointLimits(10, 1)),
    ],
)
def test_the_config_decides_how_many_are_kept_within_the_servers_bound(
    name: str, keep: int | None, limits: CheckpointLimits
) -> None:
    manifest = Manifest(kind="checkpoint", name=name, step=5, files=(file("a"),), keep=keep)
    assert limits_of(manifest, 10) == limits


def test_one_that_has_grown_may_be_told_again_though_a_newer_one_is_there() -> None:
    known = [stored(10), stored(20)]
    grown = Manifest(kind="checkpoint", name=known[0].name, step=10, files=(file("a"), file("b")))
    check_step_of_epoch(grown, known[0].epoch, known)
    stranger = Manifest(kind="checkpoint", name="checkpoint-11", step=11, files=(file("a"),))
    with pytest.raises(StepBackwards):
        check_step_of_epoch(stranger, known[0].epoch, known)


def test_a_newer_one_of_the_same_name_replaces_the_older() -> None:
    older = stored(1, kind="artifact", name="samples", step=None)
    newer = stored(2, kind="artifact", name="samples", step=None)
    assert ids(to_drop([older, newer], 3)) == ["m_1"]
    again = stored(11, step=10, name="checkpoint-10", epoch=2)
    assert ids(to_drop([stored(10), again], 3)) == ["m_10"]
    assert to_drop([stored(10), again], 3, in_use={"m_10"}) == []


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(0, 5))
def test_what_an_attempt_would_go_on_from_is_never_dropped(steps: list[int], keep: int) -> None:
    manifests = [stored(at, step=step, name=f"checkpoint-{step}") for at, step in enumerate(steps)]
    newest = newest_checkpoint(manifests)
    assert newest
    assert newest.id not in ids(to_drop(manifests, keep))


@given(st.lists(st.text("ab-/.", min_size=1, max_size=6), min_size=1, max_size=8, unique=True))
def test_no_file_lies_where_another_needs_a_folder(paths: list[str]) -> None:
    named = [path for path in paths if path_complaint(path) is None]
    folders = {"/".join(path.split("/")[:depth]) for path in named for depth in range(1, path.count("/") + 1)}
    if folders & set(named):
        with pytest.raises(Invalid):
            check_places([file(path) for path in named])
    else:
        check_places([file(path) for path in named])
