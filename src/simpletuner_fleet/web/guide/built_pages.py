"""Reads the built guide, one file for each language, when somebody first asks for that language."""

from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.languages import ENGLISH, LANGUAGES

Heading = tuple[int, str, str]
"""Level, the name to link to, and the words. The names are the same in every language."""


class GuidePage(Struct, frozen=True):
    slug: str
    title: str
    headings: list[Heading]
    codes: str
    """What stands in code marks on it, for the search."""
    html: str


class GuidePart(Struct, frozen=True):
    title: str
    slugs: list[str]


class Guide(Struct, frozen=True):
    contents: list[GuidePart]
    pages: list[GuidePage]

    def page(self, slug: str) -> GuidePage:
        for page in self.pages:
            if page.slug == slug:
                return page
        raise NotFound("There is nothing at this path.")

    def neighbours(self, slug: str) -> tuple[GuidePage | None, GuidePage | None]:
        """Returns the pages before and after this one, in the order of the contents."""
        slugs = [page.slug for page in self.pages]
        at = slugs.index(slug)
        return self.pages[at - 1] if at else None, self.pages[at + 1] if at + 1 < len(slugs) else None


def guide_in(language: str) -> Guide:
    known = language if language in {one.code for one in LANGUAGES} else ENGLISH
    return _read(known)


@cache
def _read(language: str) -> Guide:
    built = files("simpletuner_fleet.web") / "guide" / "built" / f"{language}.json"
    return msgspec.json.decode(built.read_bytes(), type=Guide)
