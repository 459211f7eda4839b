"""The guide is whole in every language, and its built pages are what its sources and the code's tables make of it."""

import re

import pytest

from devtools.guide.site import built_files
from devtools.guide.source import ROOT, TRANSLATIONS, Page, anchors, digests, english_pages
from devtools.guide.tables import TABLES
from devtools.guide.translations import findings, findings_of
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.languages import LANGUAGES
from simpletuner_fleet.web import routes
from simpletuner_fleet.web.guide.built_pages import guide_in
from simpletuner_fleet.web.guide.help_links import HELP, help_link

CODES = [language.code for language in LANGUAGES]


def test_no_translation_is_missing_or_older_than_its_source() -> None:
    assert findings() == []


def test_the_built_pages_are_up_to_date() -> None:
    stale = [path.name for path, text in built_files().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run ./dev guide"


def test_a_changed_section_is_named_in_each_language_that_does_not_follow_it() -> None:
    page = next(page for page in english_pages() if page.slug == "first-hour")
    changed = Page(page.path)
    changed.text = page.text.replace("You need Linux and Python", "You need Linux, curl and Python")
    for language in TRANSLATIONS:
        assert findings_of(changed, language) == [
            f"{language}/tutorial/first-hour.md: section 'install' is older than the English one"
        ]


def test_a_new_section_a_changed_command_and_a_missing_page_are_found() -> None:
    page = next(page for page in english_pages() if page.slug == "first-hour")
    longer = Page(page.path)
    longer.text = (
        f"{page.text}\n## One more\n\n[A page](../how-to/none.md)\n\n```bash\nsimpletuner status\n```\n"
    )
    found = {line.partition(": ")[2] for line in findings_of(longer, "hi")}
    assert found == {
        "section 'one-more' is not translated",
        "its headings are not those of the English page",
        "its code blocks are not those of the English page",
        "its links are not those of the English page, in their order",
    }
    absent = Page(page.path)
    absent.path = ROOT / "en" / "tutorial" / "second-hour.md"
    assert findings_of(absent, "ja") == ["ja/tutorial/second-hour.md: missing"]


def test_what_the_code_writes_into_a_page_makes_no_translation_old() -> None:
    page = next(page for page in english_pages() if page.tables)
    changed = Page(page.path)
    changed.text = re.sub(r"^\| `.*\n", "", page.text, flags=re.MULTILINE)
    assert changed.text != page.text
    assert digests(changed) == digests(page)


def test_every_generated_table_is_on_a_page() -> None:
    assert sorted(name for page in english_pages() for name in page.tables) == sorted(TABLES)


@pytest.mark.parametrize("language", CODES)
def test_every_link_within_the_site_leads_to_a_page_and_section(language: str) -> None:
    guide = guide_in(language)
    known = {f"/guide/{page.slug}" for page in guide.pages} | {
        f"/guide/{page.slug}#{anchor}" for page in guide.pages for _, anchor, _ in page.headings
    }
    links = {link for page in guide.pages for link in re.findall(r'href="([^"]+)"', page.html)}
    assert {link for link in links if link.startswith("/")} <= known
    assert {link for link in links if not link.startswith(("/", "https://"))} == set()
    assert {help_link(path).removesuffix("/guide") for path in HELP} <= known


@pytest.mark.parametrize("language", CODES)
def test_a_built_page_holds_no_script_style_or_raw_mark(language: str) -> None:
    for page in guide_in(language).pages:
        assert not re.search(r"<script|<style| style=|<img|<!--|&lt;!--", page.html), page.slug
        assert page.title
        assert len(page.headings) == len(anchors(_english(page.slug))) - 1


def _english(slug: str) -> Page:
    return next(page for page in english_pages() if page.slug == (slug or "README"))


def test_help_is_said_of_pages_that_there_are() -> None:
    assert HELP.keys() <= {route.path for route in routes.ROUTES}


def test_a_console_page_without_help_of_its_own_leads_to_the_nearest() -> None:
    assert help_link("/admin/workers/create") == "/guide/add-a-worker#create-it"
    assert help_link("/jobs/{id}/events") == help_link("/jobs/{id}")
    assert help_link("/me") == "/guide"


@pytest.mark.parametrize("language", CODES)
def test_the_troubleshooting_page_has_every_exit_code(language: str) -> None:
    text = Page(ROOT / language / "troubleshooting.md").text
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == sorted(ExitCode)


@pytest.mark.parametrize("language", CODES)
def test_the_life_of_a_job_tells_of_every_state(language: str) -> None:
    text = Page(ROOT / language / "explanation" / "how-a-job-lives.md").text
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [str(state) for state in JobState]
