"""The whole site in memory: for each language one file of finished pages, one page on a line."""

import json
from pathlib import Path
from typing import Any

from devtools.guide.render import render
from devtools.guide.source import INDEX, ROOT, TABLE, Page, anchors, english_pages, translation
from devtools.guide.tables import table
from simpletuner_fleet.languages import ENGLISH, LANGUAGES

TARGET = ROOT.parents[1] / "src" / "simpletuner_fleet" / "web" / "guide" / "built"


def built_files() -> dict[Path, str]:
    """Returns what every file that the build writes should hold."""
    english = english_pages()
    files = {page.path: filled_in(page, keep_marks=True) for page in english if page.tables}
    for language in (one.code for one in LANGUAGES):
        files[TARGET / f"{language}.json"] = _pages_of(language, english)
    return files


def filled_in(page: Page, *, keep_marks: bool = False) -> str:
    """Puts the tables of the code in their places, with the marks around them where they are to be found again."""
    text = page.text if keep_marks else page.prose
    around = "<!-- table: {0} -->\n\n{1}\n<!-- end -->" if keep_marks else "{1}"
    return TABLE.sub(lambda mark: around.format(mark[1], table(mark[1], page.language)), text)


def _pages_of(language: str, english: list[Page]) -> str:
    known = {page.place: "" if page.slug == INDEX else page.slug for page in english}
    lines = []
    for source in english:
        page = source if language == ENGLISH else translation(source, language)
        rendered = render(filled_in(page), anchors(source), source.place, known)
        lines.append(
            {
                "slug": known[source.place],
                "title": page.title,
                "headings": [[one.level, one.anchor, one.title] for one in rendered.headings],
                "codes": rendered.codes,
                "html": rendered.html,
            }
        )
    contents = _contents(english[0] if language == ENGLISH else translation(english[0], language), known)
    pages = ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    return f'{{"contents": {json.dumps(contents, ensure_ascii=False)},\n"pages": [\n{pages}\n]}}\n'


def _contents(index: Page, known: dict[str, str]) -> list[dict[str, Any]]:
    """The parts of the guide with their pages, as the contents page lists them."""
    parts = []
    for section in index.sections[1:]:
        inside = [target for _, target in index.links if f"]({target})" in section.text]
        parts.append({"title": section.title, "slugs": [known[target] for target in inside]})
    return parts
