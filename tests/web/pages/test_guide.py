"""The guide at /guide: open to everybody, found by search, and one click away from every page of the console."""

from playwright.async_api import expect

from simpletuner_fleet.languages import LANGUAGES
from simpletuner_fleet.web.frame.policy import POLICY
from simpletuner_fleet.web.guide.built_pages import guide_in
from tests.web.browser import PHONE, visit
from tests.web.console import Console, Pages

SOON_MS = 20_000
expect.set_options(timeout=SOON_MS)


async def test_the_search_finds_pages_sections_and_words_of_code(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "nobody", language="en")
    await visit(page, "/guide")
    await page.get_by_role("searchbox").fill("simpletuner_public_url")
    matches = page.locator("#guide-found li:visible")
    await expect(matches.filter(has_text="Settings").first).to_be_visible()
    await page.get_by_role("searchbox").fill("exit codes of the moon")
    await expect(page.get_by_text("Nothing in the guide matches.")).to_be_visible()
    await page.get_by_role("searchbox").fill("a job waits")
    await matches.filter(has_text="A job waits").first.get_by_role("link").click()
    await expect(page.locator("#a-job-waits")).to_be_visible()


async def test_help_on_a_page_of_the_console_leads_to_its_section_in_the_readers_language(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "admin", language="ja")
    await visit(page, "/admin/workers/create")
    await page.locator("[data-help]").click()
    await expect(page).to_have_url(f"{fleet.url}/guide/add-a-worker#create-it")
    shown = guide_in("ja").page("add-a-worker")
    await expect(page.get_by_role("heading", level=1)).to_have_text(shown.title)
    await expect(page.locator("#create-it")).to_be_in_viewport()


async def test_on_a_phone_the_contents_are_a_page_of_their_own(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "nobody", language="en", size=PHONE)
    await visit(page, "/guide/first-hour")
    await page.get_by_role("link", name="Contents").click()
    await expect(page).to_have_url(f"{fleet.url}/guide")


def test_every_page_is_answered_without_a_log_in_in_every_language_under_the_same_policy(
    fleet: Console,
) -> None:
    for language in LANGUAGES:
        for shown in guide_in(language.code).pages[::9]:
            answer = fleet.world.client.get(
                f"{fleet.url}/guide/{shown.slug}".rstrip("/"), headers={"accept-language": language.code}
            )
            assert answer.status_code == 200
            assert shown.html in answer.text
            assert f'<html lang="{language.code}"' in answer.text
            assert answer.headers["content-security-policy"] == POLICY
    unknown = fleet.world.client.get(f"{fleet.url}/guide/no-such-page", headers={"accept": "text/html"})
    assert unknown.status_code == 404
