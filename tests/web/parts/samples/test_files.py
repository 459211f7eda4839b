"""Which pictures a job's page shows, and in which order."""

from simpletuner_fleet.core.training.checkpoint import FileEntry, ManifestKind, StoredManifest
from simpletuner_fleet.web.parts.samples.files import samples_of


def stored(
    number: int, *paths: str, kind: ManifestKind = "artifact", step: int | None = None
) -> StoredManifest:
    return StoredManifest(
        id=f"m_{number}",
        job_id="j_1",
        attempt_id="a_1",
        attempt_number=1,
        epoch=1,
        kind=kind,
        name="samples",
        files=tuple(FileEntry(path=path, size=5, sha256=path) for path in paths),
        total_bytes=5,
        created_at=float(number),
        worker_name="w",
        step=step,
    )


def test_the_newest_come_first_by_the_step_in_their_names() -> None:
    paths = [f"validation_images/step_{step}_cat_0_64x64.png" for step in (1000, 90, 200)]
    samples = samples_of([stored(1, *paths, "notes.txt", step=100)])
    assert [sample.step for sample in samples] == [1000, 200, 90]


def test_a_picture_that_tells_no_step_has_its_manifests() -> None:
    samples = samples_of([stored(1, "validation_images/step_90.png", "samples.png", step=100)])
    assert [(sample.name, sample.step) for sample in samples] == [
        ("samples.png", 100),
        ("validation_images/step_90.png", 90),
    ]


def test_a_picture_in_two_manifests_is_shown_once() -> None:
    samples = samples_of([stored(1, "step_1.png"), stored(2, "step_1.png", "step_2.png")])
    assert [(sample.name, sample.url.split("/")[4]) for sample in samples] == [
        ("step_2.png", "m_2"),
        ("step_1.png", "m_2"),
    ]
