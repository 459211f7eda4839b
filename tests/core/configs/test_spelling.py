"""Guesses at what was meant, and what they may cost."""

import time

import pytest

from simpletuner_fleet.core.configs.bundle import MAX_BUNDLE_BYTES, MOST_TOLD_CHARS, Bundle, read_bundle
from simpletuner_fleet.core.configs.demo_settings import DEMO, check_demo_settings
from simpletuner_fleet.core.configs.options import (
    MOST_FINDINGS,
    MOST_GUESSES,
    Option,
    OptionFinding,
    Options,
    check_settings,
)
from simpletuner_fleet.core.configs.spelling import MOST_LETTERS, nearest
from simpletuner_fleet.core.errors import Invalid

NAMES = [
    f"{whose}_{what}_{kind}"
    for whose in ("train", "validation", "lora", "vae", "text_encoder", "optimizer")
    for what in ("batch", "cache", "learning", "epoch", "sample")
    for kind in ("size", "rate", "steps", "dir", "type", "beta", "decay", "path", "count", "mode")
]
OPTIONS = Options(version="4.0", options=tuple(Option(names=(name,)) for name in NAMES))
MANY = {f"train_batch_sizes_{number}": 1 for number in range(100_000)}


def test_the_most_alike_is_guessed_and_a_long_word_is_not_compared() -> None:
    assert nearest("settigns", ("secrets", "settings")) == "settings"
    assert nearest("weather", ("secrets", "settings")) is None
    assert nearest("s" * MOST_LETTERS, ("s" * MOST_LETTERS,)) is not None
    assert nearest("s" * (MOST_LETTERS + 1), ("s" * MOST_LETTERS,)) is None


def checked(trainer: str) -> list[OptionFinding]:
    bundle = Bundle(trainer=trainer, settings=MANY)
    return check_demo_settings(bundle) if trainer == DEMO else check_settings(bundle, OPTIONS)


@pytest.mark.parametrize(("trainer", "level"), [(DEMO, "warning"), ("simpletuner", "error")])
def test_a_config_of_unknown_settings_alone_is_checked_at_once_and_never_called_right(
    trainer: str, level: str
) -> None:
    """Each of them was compared with every option: ten minutes for a config of four megabytes."""
    began = time.process_time()
    findings = checked(trainer)
    assert time.process_time() - began < 2
    assert len(findings) == MOST_FINDINGS + 1
    assert sum(finding.next is not None for finding in findings) <= MOST_GUESSES
    assert findings[-1].level == level, "the demo ignores whatever it does not know"
    assert "was not checked" in findings[-1].detail


def test_what_is_wrong_with_a_huge_name_is_told_in_a_sentence() -> None:
    huge = "s" * (MAX_BUNDLE_BYTES // 2)
    with pytest.raises(Invalid) as refused:
        read_bundle({"trainer": "demo", "settings": {}, huge: 1})
    assert len(refused.value.detail) < 400
    finding, *_ = check_settings(Bundle(trainer="simpletuner", settings={huge: 1}), OPTIONS)
    assert len(finding.detail) + len(finding.path) < 4 * MOST_TOLD_CHARS


def test_a_bare_config_of_very_many_names_is_read_at_once() -> None:
    began = time.process_time()
    read_bundle({f"sitting_{number:07}": "text" for number in range(100_000)})
    assert time.process_time() - began < 5
