"""Arranges the images of a training in a gallery: one frame for each prompt, with its images from step to step."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.training.checkpoint import StoredManifest
from simpletuner_fleet.core.training.samples import Caption, caption_in
from simpletuner_fleet.web.parts.samples.files import samples_of

LIBRARY = "prompt_library.json"
FIRST_PROMPT = "validation"
"""The trainer's name for the one prompt that stands in the settings themselves."""
PROMPT_CHARS = 600


class GalleryPicture(Struct, frozen=True, kw_only=True):
    url: str
    name: str
    step: int | None


class GalleryFrame(Struct, frozen=True, kw_only=True):
    """Holds the images of one prompt, the oldest first."""

    id: str
    title: str
    text: str
    """The prompt itself, where the config tells it."""
    detail: str
    pictures: list[GalleryPicture]


def gallery_of(manifests: Sequence[StoredManifest], prompts: dict[str, str]) -> list[GalleryFrame]:
    by_caption: dict[Caption, list[GalleryPicture]] = {}
    for sample in samples_of(manifests):
        picture = GalleryPicture(url=sample.url, name=sample.name, step=sample.step)
        by_caption.setdefault(caption_in(sample.name), []).append(picture)
    prompts_alike = [caption.prompt for caption in by_caption]
    return [
        GalleryFrame(
            id="-".join(part for part in (caption.prompt, str(caption.number), caption.size) if part),
            title=caption.prompt or pictures[0].name.rpartition("/")[2],
            text=prompts.get(caption.prompt, ""),
            detail=_detail(caption, prompts_alike.count(caption.prompt) > 1),
            pictures=sorted(pictures, key=lambda one: one.step or 0),
        )
        for caption, pictures in sorted(by_caption.items())
    ]


def _detail(caption: Caption, several: bool) -> str:
    return " · ".join(part for part in (f"#{caption.number + 1}" if several else "", caption.size) if part)


def prompts_of(bundle: Bundle) -> dict[str, str]:
    """Returns the prompts of a config, by the short names that the trainer gives their images."""
    prompts: dict[str, str] = {}
    own = bundle.settings.get("validation_prompt", bundle.settings.get("--validation_prompt"))
    if isinstance(own, str):
        prompts[FIRST_PROMPT] = own[:PROMPT_CHARS]
    for name, content in bundle.files.items():
        if name.endswith(LIBRARY):
            prompts |= _library(content)
    return prompts


def _library(content: str) -> dict[str, str]:
    try:
        library = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return {}
    texts = library.items() if isinstance(library, dict) else ()
    return {name: text[:PROMPT_CHARS] for name, text in texts if isinstance(text, str)}
