"""A session that ends while somebody types: nothing leads away, the page says so, and they go on once they are back."""

import re

import pytest
from playwright.async_api import expect

from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.machines import PASSWORD
from tests.web.stage import Stage
from tests.web.test_cut_off import log_out

SAID = {
    "en": "You have been logged out.",
    "pt-BR": "Sua sessão foi encerrada.",
    "hi": "आप लॉग आउट हो चुके हैं।",
    "zh-Hans": "您已退出登录。",
    "ja": "ログアウトされました。",
}
NAME = "#name"
A_WHILE = "new Promise((done) => setTimeout(done, 1500))"


@pytest.mark.parametrize("language", SAID)
async def test_who_has_typed_keeps_it_and_is_told_in_their_language(
    stage: Stage, page_as: Pages, language: str
) -> None:
    page = await page_as(stage, "admin", language=language)
    page_as.watch(page).expect("401")
    await visit(page, "/admin/workers/create")
    await page.locator(NAME).fill("nova")
    await page.locator(NAME).blur()
    await log_out(stage)
    said = page.locator(".logged-out[role=alert]")
    await expect(said).to_contain_text(SAID[language])
    link = said.get_by_role("link")
    await expect(link).to_have_attribute("href", "/login?next=%2Fadmin%2Fworkers%2Fcreate")
    await expect(link).to_have_attribute("target", "_blank")
    await expect(page.locator("#stale")).to_be_hidden()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.evaluate(A_WHILE)
    assert page.url == f"{stage.url}/admin/workers/create"
    await expect(page.locator(NAME)).to_have_value("nova")
    assert asked == []


async def test_a_form_that_is_sent_after_the_end_keeps_what_was_typed(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("401")
    await visit(page, "/admin/tokens")
    await page.get_by_role("button", name="Create token").first.click()
    dialog = page.get_by_role("dialog", name="Create token")
    await dialog.get_by_label("Name", exact=True).fill("nightly")
    await dialog.get_by_role("button", name="Read only").click()
    await log_out(stage)
    await expect(dialog.locator(".logged-out")).to_contain_text(SAID["en"])
    await dialog.get_by_role("button", name="Create token").click()
    await expect(dialog.locator("[data-problem]")).to_contain_text("Your session has ended.")
    await expect(dialog.get_by_label("Name", exact=True)).to_have_value("nightly")
    assert page.url == f"{stage.url}/admin/tokens"

    async with page.context.expect_page() as opened:
        await dialog.locator(".logged-out").get_by_role("link").click()
    log_in = await opened.value
    await log_in.get_by_label("Name").fill("Anna")
    await log_in.get_by_label("Password").fill(PASSWORD)
    await log_in.get_by_role("button", name="Log in").click()
    await log_in.wait_for_url(f"{stage.url}/admin/tokens")
    await page.bring_to_front()
    await page.evaluate("dispatchEvent(new Event('focus'))")
    await expect(page.locator(".logged-out")).to_have_count(0)
    await dialog.get_by_role("button", name="Create token").click()
    await expect(page.locator("#tokens")).to_contain_text("nightly")


async def test_the_message_moves_out_of_a_dialog_that_is_closed(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("401")
    await visit(page, "/admin/tokens")
    await page.get_by_role("button", name="Create token").first.click()
    await log_out(stage)
    await expect(page.get_by_role("dialog").locator(".logged-out")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog .logged-out")).to_have_count(0)
    await expect(page.locator(".logged-out")).to_be_visible()


async def test_a_look_in_the_background_that_meets_the_end_leads_nowhere(
    stage: Stage, page_as: Pages
) -> None:
    """As the ages of workers are asked for, while the stream has not heard of it."""
    await stage.machine("nova")
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("401")
    await page.route("**/api/events", lambda route: None)
    await visit(page, "/admin/workers")
    await page.locator("[data-opens-palette]").click()
    await log_out(stage)
    await page.keyboard.type("nova")
    await expect(page.get_by_role("dialog").locator(".logged-out")).to_contain_text(SAID["en"])
    await expect(page.get_by_role("dialog").locator("input")).to_have_value("nova")
    assert re.search(r"/admin/workers$", page.url)


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_message_fits_on_every_screen(stage: Stage, page_as: Pages, theme: str, width: int) -> None:
    page = await page_as(stage, "admin", theme=theme)
    page_as.watch(page).expect("401")
    await page.set_viewport_size({"width": width, "height": 720})
    await visit(page, "/admin/workers/create")
    await page.locator(NAME).fill("nova")
    await log_out(stage)
    said = page.locator(".logged-out")
    await expect(said).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
