"""The releases of the real trainer that are tried, and what an environment with each of them needs."""

from typing import NamedTuple

TORCH_PINS = ("torch==2.13.0", "torchvision==0.28.0")


class TriedRelease(NamedTuple):
    version: str
    pythons: tuple[str, ...]
    """Which it runs on, the best first."""
    packages: tuple[str, ...]
    exclude_newer: str = ""
    """Its dependencies have moved on since: only what was there then goes together."""
    optional: tuple[str, ...] = ()
    """Needed for sound, video and archives alone: left out where they have no wheel."""


RELEASES = (
    TriedRelease(
        "3.1.6",
        ("3.11",),
        ("simpletuner==3.1.6",),
        exclude_newer="2025-12-25",
        optional=("torchcodec",),
    ),
    TriedRelease(
        "4.10.1",
        ("3.12", "3.13"),
        ("simpletuner==4.10.1", *TORCH_PINS),
        optional=("torchcodec", "webshart", "demucs", "sphn", "praat-parselmouth"),
    ),
)
STAND_IN = "trainingsample"
"""Every picture goes through it: where it has no wheel, `standins` has what is called of it."""
