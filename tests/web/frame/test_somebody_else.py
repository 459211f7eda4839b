"""Somebody else logs in in another tab: what was typed into a page stays, it says who it is, and sends nothing as them."""

import pytest
from playwright.async_api import Locator, Page, expect

from tests.web.browser import axe, visit
from tests.web.console import Pages
from tests.web.machines import PASSWORD
from tests.web.stage import Stage
from tests.web.test_cut_off import log_out

SAID = {
    "en": "You are now logged in as 'Bruno'.",
    "pt-BR": "Agora você está conectado como 'Bruno'.",
    "hi": "अब आप 'Bruno' के रूप में लॉग इन हैं।",
    "zh": "您现在以“Bruno”的身份登录。",
    "ja": "現在は「Bruno」としてログインしています。",
}
ANNAS_PAGES_ARE_REFUSED = ("409 (Conflict)", "403 (Forbidden)", "401")
MARK, MARKED = "window.notLoadedAgain = true", "window.notLoadedAgain === true"


async def log_in(page: Page, stage: Stage, name: str) -> None:
    """In another tab of the same browser."""
    tab = await page.context.new_page()
    await visit(tab, "/login")
    await tab.locator("#name").fill(name)
    await tab.locator("#password").fill(PASSWORD)
    await tab.locator("form button").click()
    await tab.wait_for_url(f"{stage.url}/")
    await tab.close()
    await page.bring_to_front()


async def typed_on_the_page(page: Page, path: str, field: str, text: str) -> Locator:
    await visit(page, path)
    typed = page.locator(field)
    await typed.fill(text)
    await typed.blur()
    await page.evaluate(MARK)
    return typed


async def looks_again(page: Page) -> None:
    """As somebody who comes back to this tab."""
    await page.evaluate("dispatchEvent(new Event('focus'))")


@pytest.mark.parametrize("language", SAID)
async def test_what_was_typed_before_a_logout_and_another_login_stays(
    stage: Stage, page_as: Pages, language: str
) -> None:
    page = await page_as(stage, "admin", language=language)
    page_as.watch(page).expect(*ANNAS_PAGES_ARE_REFUSED)
    name = await typed_on_the_page(page, "/admin/workers/create", "#name", "nova")
    await log_out(stage)
    await expect(page.locator(".logged-out")).to_be_visible()
    await log_in(page, stage, "Bruno")
    await looks_again(page)
    said = page.locator(".logged-out[role=alert]")
    await expect(said).to_contain_text(SAID[language])
    await expect(said).to_contain_text("Anna")
    await expect(said.get_by_role("link")).to_have_attribute(
        "href", "/login?next=%2Fadmin%2Fworkers%2Fcreate"
    )
    await expect(name).to_have_value("nova")
    assert await page.evaluate(MARKED), "the same page still"


async def test_a_form_is_not_sent_as_somebody_else_and_goes_on_once_its_own_user_is_back(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect(*ANNAS_PAGES_ARE_REFUSED)
    name = await typed_on_the_page(page, "/admin/workers/create", "#name", "nova")
    await log_in(page, stage, "Bruno")
    await page.locator("main form button:not([type=button])").click()
    said = page.locator(".logged-out[role=alert]")
    await expect(said).to_contain_text(SAID["en"])
    await name.blur()
    await expect(name).to_have_value("nova")
    assert "nova" not in (await stage.running.http.get("/api/admin/workers")).text

    await log_in(page, stage, "Anna")
    await looks_again(page)
    await expect(said).to_have_count(0)
    assert await page.evaluate(MARKED)
    await expect(name).to_have_value("nova")
    await page.locator("main form button:not([type=button])").click()
    await expect(page.locator("main")).to_contain_text("nova")
    assert "nova" in (await stage.running.http.get("/api/admin/workers")).text


async def test_what_is_wanted_of_a_training_is_not_lost_with_the_page(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect(*ANNAS_PAGES_ARE_REFUSED)
    name = await typed_on_the_page(page, "/train", "[name=max_price]", "2.5")
    await log_in(page, stage, "Bruno")
    # The look at who could run this is refused by now.
    await page.locator("[name=gpus]").fill("2")
    await page.locator("[name=gpus]").blur()
    await expect(page.locator(".logged-out[role=alert]")).to_contain_text(SAID["en"])
    await expect(name).to_have_value("2.5")
    send = page.locator("#send")
    await expect(send).to_be_disabled()
    await send.click(force=True)  # it is only said to be: whoever presses it has the request looked at again
    await expect(send).not_to_have_attribute("aria-busy", "true")
    await expect(page.locator("#outlook")).to_contain_text(SAID["en"])
    await expect(name).to_have_value("2.5")
    assert (await stage.running.http.get("/api/jobs")).json()["jobs"] == []


async def test_whoever_gives_up_what_was_typed_gets_the_page_of_who_is_logged_in(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect(*ANNAS_PAGES_ARE_REFUSED)
    await typed_on_the_page(page, "/admin/workers/create", "#name", "nova")
    await log_in(page, stage, "Bruno")
    await page.locator("main form button:not([type=button])").click()
    await page.locator(".logged-out").get_by_role("button", name="Discard it and reload").press("Enter")
    await expect(page.get_by_role("heading", name="You cannot view this page")).to_be_visible()


async def test_a_page_on_which_nothing_was_typed_becomes_that_of_who_is_logged_in(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect(*ANNAS_PAGES_ARE_REFUSED)
    await visit(page, "/jobs")
    await log_in(page, stage, "Bruno")
    await expect(page.locator(".rail-foot")).to_contain_text("Bruno")


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_message_fits_and_keeps_nobody_out(
    stage: Stage, page_as: Pages, theme: str, width: int
) -> None:
    page = await page_as(stage, "admin", theme=theme, size=(width, 720), language="pt-BR")
    page_as.watch(page).expect(*ANNAS_PAGES_ARE_REFUSED)
    await typed_on_the_page(page, "/admin/workers/create", "#name", "nova")
    await log_in(page, stage, "Bruno")
    await page.locator("main form button:not([type=button])").click()
    await expect(page.locator(".logged-out")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await axe(page)
