"""Every sentence is translated into every language, and nothing is translated that nobody says."""

import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog

import simpletuner_fleet.cli
from devtools.languages import words, words_checks
from simpletuner_fleet.cli.frame.output import Column
from simpletuner_fleet.languages.scripts import SENTENCES

RUN = "run ./dev words, translate what is missing in languages/locales, run it again"
HINDI_HAS_A_WORD = re.compile(
    r"(?<![\w%(.-])(approvals?|approved?|busy|offline|online|idle|failed|failures?|fail|quotas?)(?![\w)])",
    re.IGNORECASE,
)
TYPED_OR_PRINTED_BY_PROGRAMS = ("simpletuner ", "SSL certificate", "IDLE", "FAILURE")
each_catalogue = pytest.mark.parametrize("folder", words.TRANSLATED_FOLDERS)


@pytest.fixture(scope="module")
def said() -> list[words.Sentence]:
    return list(words.all_sentences())


@cache
def read(folder: str) -> Catalog:
    """One for all tests here, which only look at it: to read it takes longer than to look."""
    return words.read(folder)


def columns() -> set[str]:
    """The headings of every table that a command prints."""
    titles: set[str] = set()
    for module in pkgutil.walk_packages(simpletuner_fleet.cli.__path__, "simpletuner_fleet.cli."):
        for value in vars(importlib.import_module(module.name)).values():
            texts = value if isinstance(value, tuple) else ()
            titles |= {column.title for column in texts if isinstance(column, Column)}
    return titles


def test_every_heading_is_known_to_every_language(said: list[words.Sentence]) -> None:
    assert columns() - {sentence.msgid for sentence in said} == set()


@each_catalogue
def test_a_catalogue_holds_every_sentence_of_the_sources_and_no_other(
    folder: str, said: list[words.Sentence]
) -> None:
    catalogue = read(folder)
    assert words_checks.not_in_catalogue(catalogue, said) == [], RUN
    assert words_checks.unused(catalogue, said) == [], RUN


@each_catalogue
def test_every_sentence_is_translated_for_certain(folder: str) -> None:
    catalogue = read(folder)
    assert words_checks.missing(catalogue) == [], RUN
    assert words_checks.fuzzy(catalogue) == []


@each_catalogue
def test_translations_have_the_blanks_of_their_sentence(folder: str) -> None:
    assert words_checks.wrong_placeholders(read(folder)) == []


@each_catalogue
def test_plurals_have_as_many_forms_as_the_language(folder: str) -> None:
    catalogue = read(folder)
    assert catalogue.plural_forms == words.PLURALS[folder]
    assert words_checks.wrong_plurals(catalogue) == []


@each_catalogue
def test_catalogues_are_written_and_compiled_by_the_tool(folder: str) -> None:
    path: Path = words.catalogue_path(folder)
    catalogue = read(folder)
    assert path.with_suffix(".mo").read_bytes() == words.mo_bytes(catalogue), RUN


def test_the_sentences_of_the_scripts_are_gathered() -> None:
    assert SENTENCES.read_text("utf-8") == words.scripts_text(), RUN


def test_no_sentence_is_put_together_at_run_time() -> None:
    assert list(words_checks.unreadable_marks(words.SOURCE)) == []


def test_commands_say_nothing_that_is_english_in_every_language() -> None:
    assert list(words_checks.english_alone(words.SOURCE)) == []


def test_hindi_says_in_hindi_what_hindi_has_a_word_for() -> None:
    """States, approvals and quotas were Hindi in labels and English in the sentences beside them."""
    said_in_english = [
        text
        for message in read("hi")
        for text in ([message.string] if isinstance(message.string, str) else message.string or ())
        if HINDI_HAS_A_WORD.search(text) and not any(part in text for part in TYPED_OR_PRINTED_BY_PROGRAMS)
    ]
    assert said_in_english == []


def test_the_hindi_guide_says_the_same_in_its_prose() -> None:
    code = re.compile(r"<!--.*?-->|```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
    pages = sorted((words.ROOT / "docs" / "guide" / "hi").rglob("*.md"))
    said_in_english = [
        (page.name, line)
        for page in pages
        for line in code.sub("", page.read_text("utf-8")).splitlines()
        if HINDI_HAS_A_WORD.search(line) and not any(part in line for part in TYPED_OR_PRINTED_BY_PROGRAMS)
    ]
    assert len(pages) > 10
    assert said_in_english == []
