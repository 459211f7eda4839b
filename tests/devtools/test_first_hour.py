"""The first hour itself takes minutes and root; that it waits for sentences which are said can be seen at once."""

from devtools.first_hour import CHECKED
from simpletuner_fleet.languages.words import LOCALES


def test_what_it_expects_of_the_check_is_what_the_check_says() -> None:
    sentences = (LOCALES / "pt_BR/LC_MESSAGES/fleet.po").read_text(encoding="utf-8")
    assert [words for words in CHECKED if words not in sentences] == []
