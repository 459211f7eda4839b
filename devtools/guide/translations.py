"""Which translation of the guide is missing, older than its source, or made differently."""

from collections.abc import Iterator

from devtools.guide.source import ROOT, TRANSLATIONS, Page, digests, english_pages, translation


def findings() -> list[str]:
    """Returns a sentence for everything that a reader of another language would miss."""
    pages = english_pages()
    known = {page.place for page in pages}
    found = [
        f"{path.relative_to(ROOT).as_posix()}: the contents page does not lead to it"
        for path in sorted(ROOT.rglob("*.md"))
        if path.parent != ROOT
        and path.relative_to(ROOT / path.relative_to(ROOT).parts[0]).as_posix() not in known
    ]
    for page in pages:
        for language in TRANSLATIONS:
            found += findings_of(page, language)
    return found


def findings_of(page: Page, language: str) -> list[str]:
    if not (ROOT / language / page.place).exists():
        return [f"{language}/{page.place}: missing"]
    translated = translation(page, language)
    return [
        f"{translated.name}: {what}" for what in (*_stale(page, translated), *_different(page, translated))
    ]


def _stale(page: Page, translated: Page) -> Iterator[str]:
    was, now = translated.stamp, digests(page)
    for section in now.keys() - was.keys():
        yield f"section '{section}' is not translated"
    for section in was.keys() - now.keys():
        yield f"section '{section}' is no longer in the English page"
    for section in now.keys() & was.keys():
        if now[section] != was[section]:
            yield f"section '{section}' is older than the English one"


def _different(page: Page, translated: Page) -> Iterator[str]:
    if [section.level for section in page.sections] != [section.level for section in translated.sections]:
        yield "its headings are not those of the English page"
    if page.code_blocks != translated.code_blocks:
        yield "its code blocks are not those of the English page"
    if [target for _, target in page.links] != [target for _, target in translated.links]:
        yield "its links are not those of the English page, in their order"
    if page.tables != translated.tables:
        yield "its generated tables are not those of the English page"


def stamp(translated: Page) -> None:
    """Notes that this page says what the English one says now."""
    source = Page(ROOT / "en" / translated.place)
    translated.path.write_text(translated.stamped(digests(source)), encoding="utf-8")
