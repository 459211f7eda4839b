"""Which language somebody reads."""

import pytest

from simpletuner_fleet.languages import LANGUAGES, choose, known, translator
from simpletuner_fleet.languages.choosing import from_environment


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("en", "en"),
        ("EN-gb", "en"),
        ("pt", "pt-BR"),
        ("pt_BR.UTF-8", "pt-BR"),
        ("pt-PT", "pt-BR"),
        ("hi_IN", "hi"),
        ("zh", "zh-Hans"),
        ("zh-CN", "zh-Hans"),
        ("zh_Hans.utf8@pinyin", "zh-Hans"),
        (" ja ", "ja"),
        ("de", None),
        ("C.UTF-8", None),
        ("POSIX", None),
        ("", None),
        (None, None),
        ("ptx", None),
        ("../../etc", None),
    ],
)
def test_any_way_to_write_a_language_is_understood(tag: str | None, code: str | None) -> None:
    assert known(tag) == code


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("ja", "ja"),
        ("de-DE,de;q=0.9,hi;q=0.8,en;q=0.7", "hi"),
        ("en;q=0.3, zh-CN;q=0.9", "zh-Hans"),
        ("pt-BR,en", "pt-BR"),
        ("hi;q=0, en", "en"),
        ("hi;q=nonsense, ja;q=0.1", "ja"),
        ("*", "en"),
        ("", "en"),
        (None, "en"),
        ("ja" + ",x" * 10_000, "ja"),
    ],
)
def test_the_browser_gets_the_language_it_likes_best(header: str | None, code: str) -> None:
    assert choose(header) == code


def test_what_a_person_set_counts_more_than_the_browser() -> None:
    assert choose("ja", cookie="hi") == "hi"
    assert choose("ja", cookie="hi", user_setting="pt-BR") == "pt-BR"
    assert choose("ja", cookie="<script>", user_setting="xx") == "ja"


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"SIMPLETUNER_LANG": "ja", "LC_ALL": "hi_IN"}, "ja"),
        ({"LC_ALL": "hi_IN.UTF-8", "LC_MESSAGES": "ja_JP", "LANG": "pt_BR"}, "hi"),
        ({"LC_MESSAGES": "ja_JP", "LANG": "pt_BR"}, "ja"),
        ({"LANG": "pt_BR.UTF-8"}, "pt-BR"),
        ({"LC_ALL": "C", "LANG": "pt_BR"}, "en"),
        ({"SIMPLETUNER_LANG": "", "LANG": "zh_CN"}, "zh-Hans"),
        ({"SIMPLETUNER_LANG": "klingon"}, "en"),
        ({}, "en"),
    ],
)
def test_a_command_reads_its_environment(environment: dict[str, str], code: str) -> None:
    assert from_environment(environment) == code


def test_every_language_has_words_and_its_own_name() -> None:
    assert [language.code for language in LANGUAGES] == ["en", "pt-BR", "hi", "zh-Hans", "ja"]
    for language in LANGUAGES:
        assert translator(language.code).lang == language.code
        assert language.name
