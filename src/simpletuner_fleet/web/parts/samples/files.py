"""Finds the images among the files that a training has stored."""

from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.training.checkpoint import FileEntry, StoredManifest
from simpletuner_fleet.core.training.samples import MAX_BYTES, MOST, drawn_order, is_picture, step_in


class Sample(Struct, frozen=True, kw_only=True):
    url: str
    name: str
    step: int | None
    sha256: str


def samples_of(manifests: Sequence[StoredManifest], most: int = MOST) -> list[Sample]:
    """Returns the images, newest first, each once, however many checkpoints contain it."""
    samples: dict[tuple[str, str], Sample] = {}
    for manifest in reversed(manifests):
        pictures = [file for file in manifest.files if is_picture(file.path) and file.size <= MAX_BYTES]
        pictures.sort(key=lambda file: drawn_order(file.path, manifest.step), reverse=True)
        for file in pictures:
            if len(samples) < most:
                samples.setdefault((file.sha256, file.path.rpartition("/")[2]), _sample(manifest, file))
    return list(samples.values())


def _sample(manifest: StoredManifest, file: FileEntry) -> Sample:
    step = step_in(file.path)
    return Sample(
        url=f"/jobs/{manifest.job_id}/pictures/{manifest.id}/{file.sha256}",
        name=file.path,
        step=manifest.step if step is None else step,
        sha256=file.sha256,
    )
