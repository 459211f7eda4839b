"""The checks of the catalogues find what they are there to find."""

from pathlib import Path

import pytest
from babel.messages.catalog import Catalog

from devtools.languages import words_checks
from devtools.languages.words import Sentence


def catalogue(msgid: str | tuple[str, str], translation: str | tuple[str, ...], **more: object) -> Catalog:
    made = Catalog(locale="pt_BR")
    made.add(msgid, translation, **more)  # type: ignore[arg-type]
    return made


def test_an_empty_translation_is_missing_and_so_is_half_a_plural() -> None:
    assert words_checks.missing(catalogue("Stop", "")) == ["Stop"]
    assert words_checks.missing(catalogue(("one job", "%(n)s jobs"), ("um job", ""))) == ["one job"]
    assert words_checks.missing(catalogue("Stop", "Parar")) == []


def test_a_guess_is_found() -> None:
    assert words_checks.fuzzy(catalogue("Stop", "Parar", flags=["fuzzy"])) == ["Stop"]


def test_what_nobody_says_any_more_is_found_and_what_is_new_too() -> None:
    said = [Sentence("a.py", "Go")]
    assert words_checks.unused(catalogue("Stop", "Parar"), said) == ["Stop"]
    assert words_checks.not_in_catalogue(catalogue("Stop", "Parar"), said) == ["Go"]


@pytest.mark.parametrize(
    "translation",
    [
        "Olá",
        "Olá %(nome)s",
        "Olá %(name)d",
        "Olá %(name)s %(more)s",
        "Olá %(name)s 50 %",
        "Olá %(name)s 50% já",
    ],
)
def test_a_broken_blank_is_found(translation: str) -> None:
    assert len(words_checks.wrong_placeholders(catalogue("Hello %(name)s", translation))) == 1


@pytest.mark.parametrize("translation", ["Olá %(name)s", "%(name)s: olá, 50 %%"])
def test_blanks_may_move(translation: str) -> None:
    assert words_checks.wrong_placeholders(catalogue("Hello %(name)s", translation)) == []


def test_a_form_may_leave_out_the_number_but_nothing_else() -> None:
    msgid = ("one job on %(where)s", "%(n)s jobs on %(where)s")
    assert (
        words_checks.wrong_placeholders(catalogue(msgid, ("um job em %(where)s", "%(n)s em %(where)s"))) == []
    )
    assert len(words_checks.wrong_placeholders(catalogue(msgid, ("um job", "%(n)s em %(where)s")))) == 1


def test_a_wrong_number_of_forms_is_found() -> None:
    assert words_checks.wrong_plurals(catalogue(("one job", "%(n)s jobs"), ("um job",))) == ["one job"]
    assert words_checks.wrong_plurals(catalogue(("one job", "%(n)s jobs"), ("um job", "%(n)s jobs"))) == []


def test_a_sentence_put_together_at_run_time_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(
        '_("Hello")\n_(f"Hello {name}")\nngettext("one", "a" + many, 3)\n_(TABLE[code])\n'
        'f"{_(TABLE[code])}"\nf"{_(\'Hello\')}"\n'
    )
    assert list(words_checks.unreadable_marks(tmp_path)) == ["page.py:2", "page.py:3", "page.py:6"]


def test_sentences_that_are_english_alone_are_found(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "noun.py").write_text(
        'out.say(_("the job is gone"))\n'
        'warn(f"{host} can read the token")\n'
        'print("simpletuner jobs list")\n'
        'raise ValueError("not of this form")\n',
        encoding="utf-8",
    )
    assert list(words_checks.english_alone(tmp_path)) == [
        "cli/noun.py:2: … can read the token",
        "cli/noun.py:4: not of this form",
    ]
