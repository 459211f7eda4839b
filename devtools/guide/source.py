"""What a page of the guide is as Markdown: its sections, code blocks, links and generated tables."""

import re
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.languages import ENGLISH, LANGUAGES

ROOT = Path(__file__).parents[2] / "docs" / "guide"
INDEX = "README"
TRANSLATIONS = tuple(language.code for language in LANGUAGES if language.code != ENGLISH)
FENCE = "```"
HEADING = re.compile(r"(#{1,3}) (.+)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
STAMP = re.compile(r"\n*<!-- translates\n(.*?)-->\n*$", re.DOTALL)
TABLE = re.compile(r"<!-- table: ([a-z-]+) -->(?:\n(?:(?!<!-- table).)*?<!-- end -->)?", re.DOTALL)


class Section(NamedTuple):
    level: int
    title: str
    text: str

    @property
    def digest(self) -> str:
        """Tells two versions apart; a table that the code writes is not a translator's concern."""
        words = TABLE.sub(r"table: \1", f"{self.title}\n{self.text.strip()}")
        return sha256(words.encode()).hexdigest()[:10]


class Page:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.slug = path.stem
        self.language = path.relative_to(ROOT).parts[0]
        self.text = path.read_text(encoding="utf-8")

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def place(self) -> str:
        """Where it stands in its language's folder; the same in every language."""
        return self.path.relative_to(ROOT / self.language).as_posix()

    @cached_property
    def prose(self) -> str:
        return STAMP.sub("\n", self.text)

    @cached_property
    def sections(self) -> list[Section]:
        return list(_sections(self.prose))

    @property
    def title(self) -> str:
        return self.sections[0].title

    @property
    def code_blocks(self) -> list[str]:
        return re.findall(r"^```.*?^```$", self.prose, re.DOTALL | re.MULTILINE)

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(text, target) for text, target in LINK.findall(self.prose)]

    @property
    def tables(self) -> list[str]:
        return TABLE.findall(self.prose)

    @property
    def stamp(self) -> dict[str, str]:
        """The English sections that this page translates, each with the digest it had then."""
        found = STAMP.search(self.text)
        return dict(line.split() for line in found[1].splitlines()) if found else {}

    def stamped(self, digests: dict[str, str]) -> str:
        lines = "".join(f"{anchor} {digest}\n" for anchor, digest in digests.items())
        return f"{self.prose.rstrip()}\n\n<!-- translates\n{lines}-->\n"


def _sections(text: str) -> Iterator[Section]:
    level, title, lines, fenced = 0, "", list[str](), False
    for line in text.splitlines():
        fenced ^= line.startswith(FENCE)
        heading = None if fenced else HEADING.fullmatch(line)
        if heading:
            if level:
                yield Section(level, title, "\n".join(lines))
            level, title, lines = len(heading[1]), heading[2], []
        else:
            lines.append(line)
    yield Section(level, title, "\n".join(lines))


def anchors(page: Page) -> list[str]:
    """Returns a name for each section, made of its English title: links lead to it in every language."""
    seen = dict[str, int]()
    names = []
    for section in page.sections:
        name = re.sub(r"[^a-z0-9]+", "-", section.title.replace("`", "").lower()).strip("-")
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def digests(page: Page) -> dict[str, str]:
    return {name: section.digest for name, section in zip(anchors(page), page.sections, strict=True)}


def english_pages() -> list[Page]:
    """Returns all of them in the order of the contents page, which comes first."""
    index = Page(ROOT / ENGLISH / f"{INDEX}.md")
    return [index, *(Page(ROOT / ENGLISH / target) for _, target in index.links)]


def translation(page: Page, language: str) -> Page:
    return Page(ROOT / language / page.place)
