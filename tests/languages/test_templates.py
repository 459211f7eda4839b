"""Nothing on a page is written in one language only."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from devtools.languages.words import ROOT, TEMPLATES

JINJA = re.compile(r"\{%-?\s*trans\b.*?\{%-?\s*endtrans\s*-?%\}|\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)
SAME_EVERYWHERE = frozenset({"code", "kbd", "pre", "samp", "script", "style", "svg"})
HEARD = frozenset({"alt", "aria-label", "aria-description", "placeholder", "title"})
WORD = re.compile(r"[^\W\d_]{2,}")
NAMES = frozenset(
    {"SimpleTuner", "Fleet", "API", "JSON", "GPU", "GB", "TLS", "CPU", "VRAM", "UTC", "CSV", "loss"}
)


class Reader(HTMLParser):
    """Collects what a person would read or hear."""

    def __init__(self) -> None:
        super().__init__()
        self.bare_words: list[str] = []
        self._apart: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SAME_EVERYWHERE:
            self._apart.append(tag)
        for name, value in attrs:
            if name in HEARD and not (name == "placeholder" and is_example(value or "")):
                self._read(value or "")

    def handle_endtag(self, tag: str) -> None:
        if self._apart and self._apart[-1] == tag:
            self._apart.pop()

    def handle_data(self, data: str) -> None:
        if not self._apart:
            self._read(data)

    def _read(self, text: str) -> None:
        self.bare_words += [word for word in WORD.findall(text) if word not in NAMES]


def is_example(text: str) -> bool:
    """`gpu_type=a100*`: something to type, the same in every language."""
    return " " not in text.strip()


def bare_words(text: str) -> list[str]:
    reader = Reader()
    reader.feed(JINJA.sub("", text))
    return reader.bare_words


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: path.stem)
def test_every_word_of_a_template_is_marked_for_translation(path: Path) -> None:
    assert bare_words(path.read_text("utf-8")) == [], path.relative_to(ROOT)


def test_a_bare_word_is_found_and_what_is_marked_is_not() -> None:
    assert (
        bare_words('<p>{{ _("Good") }} {% trans n=3 %}fine {{ n }}{% endtrans %} <code>jobs list</code></p>')
        == []
    )
    assert bare_words("<p>Bad</p>") == ["Bad"]
    assert bare_words('<input placeholder="Bad too" class="good">') == ["Bad", "too"]
    assert bare_words('<input placeholder="gpu_type=a100*">') == []
    assert bare_words('<button aria-label="{{ _("Good") }}">+</button>') == []
