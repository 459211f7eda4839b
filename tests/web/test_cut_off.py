"""Answers that are cut, refused or late, and sessions that end: what the page then says is so."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.async_api import FilePayload, Page, Route, expect

from simpletuner_fleet.http.access.sessions import COOKIE
from simpletuner_fleet.web.frame.assets import ASSETS
from tests.e2e.proxy import Proxy
from tests.http.data_kit import push
from tests.web.browser import answer_first, visit
from tests.web.console import Pages
from tests.web.fleet import PEOPLE
from tests.web.machines import PASSWORD
from tests.web.stage import Behind, Stage

LIVE_WORKER = f"import({json.dumps(ASSETS.url('js/frame/live-worker.js'))})"
"""Runs it in the page itself, where its clock can be turned."""
READY = 'event: ready\ndata: {"type": "ready", "at": "2026-01-01T00:00:00Z"}\n\n'
QUIET_MS, LOOKED_S = 36_000, 12
ASK_SOMETHING = "fetch(location.href).then((answer) => answer.text())"
WITHOUT_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
"""As on a page that came without TLS from another machine."""
NOTE_COPIES = """() => { window.copies = []; document.addEventListener("copy", () => {
  const at = document.activeElement;
  window.copies.push(at.value?.slice(at.selectionStart, at.selectionEnd) || getSelection().toString()); }) }"""
WITHOUT_SHARED_WORKERS = "delete window.SharedWorker"
"""What a worker of a page asks for can be waited for."""
MARK, MARKED = "window.notLoadedAgain = true", "window.notLoadedAgain === true"
FORBIDDEN: dict[str, Any] = {
    "status": 403,
    "content_type": "application/problem+json",
    "body": json.dumps(
        {"title": "Not for you.", "status": 403, "code": "forbidden", "detail": "Viewers read no logs."}
    ),
}
BUSY: dict[str, Any] = {
    "status": 429,
    "content_type": "application/problem+json",
    "body": json.dumps({"title": "Too much.", "status": 429, "code": "too_many_requests", "detail": "Wait."}),
}
BAD_GATEWAY: dict[str, Any] = {"status": 502, "content_type": "text/html", "body": "<h1>Bad gateway</h1>"}
HEARS_READY = """() => { window.ready = new Promise((done) => document.addEventListener(
  "fleet", ({ detail }) => { if (detail.type === "ready") setTimeout(done, 1500); })) }"""


async def log_out(stage: Stage) -> None:
    """Ends the administrator's session, as from another tab."""
    async with stage.running.as_user(None) as client:
        headers = {"origin": stage.url, "cookie": f"{COOKIE}={stage.sessions['admin']}"}
        (await client.post("/api/logout", json={}, headers=headers)).raise_for_status()


class Refusals:
    """Answers requests for one address, and counts them."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.asked = 0
        self._answer = answer

    async def refuse(self, route: Route) -> None:
        self.asked += 1
        await route.fulfill(**self._answer)

    async def within(self, page: Page, seconds: int) -> int:
        """Returns how often it is asked for while the page's clock goes on by so many seconds."""
        before = self.asked
        for _ in range(seconds):
            await page.clock.run_for(1_000)
            await page.evaluate(ASK_SOMETHING)
        return self.asked - before


async def create_token(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Create token").first.click()
    dialog = page.get_by_role("dialog", name="Create token")
    await dialog.get_by_label("Name", exact=True).fill(name)
    await dialog.get_by_role("button", name="Read only").click()
    await dialog.get_by_role("button", name="Create token").click()


async def test_a_stream_that_is_slow_to_open_is_waited_for(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "nobody")
    page_as.watch(page).expect("net::ERR", "Failed to load resource")
    asked: list[Route] = []

    async def answer_the_first(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            await route.fulfill(content_type="text/event-stream", body=READY)

    await page.clock.install()
    await page.goto("/login")
    await page.route("**/api/events", answer_the_first)
    async with page.expect_event("requestfinished", lambda request: request.url.endswith("/api/events")):
        await page.evaluate(LIVE_WORKER)
    await page.clock.run_for(QUIET_MS)
    before = len(asked)
    for _ in range(LOOKED_S):
        await page.clock.run_for(1_000)
        await page.evaluate(ASK_SOMETHING)
    assert 1 <= len(asked) - before <= LOOKED_S // 4 + 1, "a server has some seconds to answer"


async def live_worker_meets(page: Page, answer: dict[str, Any]) -> Refusals:
    refusals = Refusals(answer)
    await page.clock.install()
    await page.goto("/login")
    await page.route("**/api/events", refusals.refuse)
    async with page.expect_event("requestfinished", lambda request: request.url.endswith("/api/events")):
        await page.evaluate(LIVE_WORKER)
    return refusals


async def test_events_that_are_refused_are_not_asked_for_again(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "nobody")
    page_as.watch(page).expect("403")
    refusals = await live_worker_meets(page, FORBIDDEN)
    await refusals.within(page, 60)
    assert refusals.asked <= 2, "once as a stream, and once for the reason"


@pytest.mark.parametrize("answer", [BAD_GATEWAY, BUSY], ids=["bad gateway", "busy"])
async def test_events_that_fail_for_other_reasons_are_asked_for_less_and_less_often(
    stage: Stage, page_as: Pages, answer: dict[str, Any]
) -> None:
    page = await page_as(stage, "nobody")
    page_as.watch(page).expect(str(answer["status"]))
    refusals = await live_worker_meets(page, answer)
    at_first, later = [await refusals.within(page, 30) for _ in range(2)]
    assert 4 <= at_first <= 12, "each time as a stream and for the reason"
    assert 2 <= later <= 8


async def test_a_page_says_in_its_language_why_nothing_is_told_to_it(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin", language="pt-BR")
    page_as.watch(page).expect("401")
    await visit(page, "/admin/workers/create")
    await page.locator("#name").fill("nova")
    await log_out(stage)
    await expect(page.locator(".logged-out")).to_contain_text("Sua sessão foi encerrada.")
    await expect(page.locator("#live")).to_have_text("Não está ao vivo")


async def test_a_log_that_is_refused_says_why_and_is_not_asked_for_again(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    work = await stage.begin()
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("403")
    refusals = Refusals(FORBIDDEN)
    await page.clock.install()
    await page.route("**/logs?*follow=true*", refusals.refuse)
    await visit(page, f"/jobs/{work.job_id}/logs")
    await expect(page.locator("[data-log-refused]")).to_have_text(
        "This log is not followed: Not for you. Viewers read no logs."
    )
    await refusals.within(page, 60)
    assert refusals.asked <= 2, "once as a stream, and once for the reason"


async def test_a_log_that_fails_for_other_reasons_is_asked_for_less_and_less_often(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    work = await stage.begin()
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("502")
    refusals = Refusals(BAD_GATEWAY)
    await page.clock.install()
    await page.route("**/logs?*follow=true*", refusals.refuse)
    await visit(page, f"/jobs/{work.job_id}/logs")
    at_first, later = [await refusals.within(page, 30) for _ in range(2)]
    assert 4 <= at_first <= 12, "each time as a stream and for the reason"
    assert 2 <= later <= 8
    await expect(page.locator("[data-log-refused]")).to_be_hidden()


async def test_a_page_whose_session_has_ended_leads_to_the_log_in(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("401")
    await visit(page, "/admin/workers")
    await log_out(stage)
    await page.wait_for_url(re.compile(r"/login\?next="))


async def test_a_page_acts_for_nobody_else_and_is_theirs_once_nobody_is_busy_with_it(
    stage: Stage, page_as: Pages
) -> None:
    busy = await page_as(stage, "admin")
    page_as.watch(busy).expect("409 (Conflict)", "403 (Forbidden)")
    quiet, other = [await busy.context.new_page() for _ in range(2)]
    await visit(busy, "/admin/tokens")
    await busy.get_by_role("button", name="Create token").first.click()
    await visit(quiet, "/me")
    await visit(other, "/login")
    await other.get_by_label("Name").fill("Bruno")
    await other.get_by_label("Password").fill(PASSWORD)
    await other.get_by_role("button", name="Log in").click()
    await other.wait_for_url(f"{stage.url}/")

    dialog = busy.get_by_role("dialog", name="Create token")
    await dialog.get_by_label("Name", exact=True).fill("nightly")
    await dialog.get_by_role("button", name="Read only").click()
    await dialog.get_by_role("button", name="Create token").click()
    await expect(dialog.locator("[data-problem]")).to_contain_text("This page was opened by another user.")
    await expect(dialog.locator(".logged-out")).to_contain_text("You are now logged in as 'Bruno'.")
    listed = await stage.running.http.get("/api/admin/tokens")
    assert "nightly" not in listed.text
    await expect(quiet.locator(".rail-foot")).to_contain_text("Bruno")
    await busy.keyboard.press("Escape")
    await expect(busy.get_by_role("heading", name="You cannot view this page")).to_be_visible()


async def test_who_logs_in_again_elsewhere_goes_on_with_what_they_typed(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("401")
    await page.add_init_script(WITHOUT_SHARED_WORKERS)
    await visit(page, "/admin/workers/create")
    await page.get_by_label("Name", exact=True).fill("nova")
    await page.evaluate(HEARS_READY)
    await log_out(stage)
    await expect(page.locator(".logged-out")).to_contain_text("You have been logged out.")
    again = await stage.crew.log_in("admin", PEOPLE["admin"])
    session = {"name": COOKIE, "value": again, "url": stage.url}
    await page.context.add_cookies([session])  # type: ignore[list-item]
    await page.evaluate("dispatchEvent(new Event('focus'))")
    await page.evaluate("() => window.ready")
    await page.evaluate(MARK)
    await page.get_by_label("Name", exact=True).blur()
    await page.evaluate("new Promise((done) => setTimeout(done, 600))")
    assert await page.evaluate(MARKED)
    await expect(page.locator(".logged-out")).to_have_count(0)
    await expect(page.get_by_label("Name", exact=True)).to_have_value("nova")


async def test_a_paused_page_stands_still_when_its_stream_comes_back(stage: Stage, page_as: Pages) -> None:
    with Proxy(int(stage.url.rpartition(":")[2])) as proxy:
        page = await page_as(Behind(stage, proxy), "admin")
        page_as.watch(page).expect("net::ERR", "Failed to load resource")
        await visit(page, "/admin/workers")
        await page.locator("#live").click()
        await expect(page.locator("#live")).to_have_text("Paused")
        await page.evaluate(HEARS_READY)
        proxy.reset()
        await stage.machine("nova")
        await page.evaluate("() => window.ready")
        await expect(page.get_by_role("link", name="nova")).to_have_count(0)
        await page.locator("#live").click()
        await expect(page.get_by_role("link", name="nova")).to_be_visible()


async def test_a_dataset_comes_and_goes_on_an_open_page(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/datasets")
    made = await push(stage.running.http, {"a.txt": b"a"})
    await expect(page.get_by_role("link", name="pets")).to_be_visible()
    await stage.running.http.delete(f"/api/data/{made}")
    await expect(page.get_by_role("link", name="pets")).to_have_count(0)


async def test_an_answer_that_is_cut_or_not_ours_is_said(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("502")
    await visit(page, "/admin/tokens")
    answers: Iterator[dict[str, Any]] = iter(
        (
            {"status": 201, "content_type": "application/json", "body": '{"token": "st_'},
            {"status": 502, "content_type": "application/json", "body": '{"message": "bad gateway"}'},
        )
    )
    await answer_first(page, "**/api/admin/tokens", lambda route: route.fulfill(**next(answers)), times=2)
    await create_token(page, "nightly")
    dialog = page.get_by_role("dialog", name="Create token")
    await expect(dialog.get_by_role("alert")).to_contain_text("The server did not respond.")
    await dialog.get_by_role("button", name="Create token").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The server refused.")
    await expect(dialog.get_by_role("alert")).to_contain_text("502")


async def test_a_secret_is_copied_without_tls_as_well(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await page.add_init_script(WITHOUT_CLIPBOARD)
    await visit(page, "/admin/tokens")
    await page.evaluate(NOTE_COPIES)
    await create_token(page, "nightly")
    shown = page.get_by_role("dialog", name="New token")
    secret = await shown.locator("[data-once-text]").inner_text()
    await shown.get_by_role("button", name="Copy").first.click()
    await expect(page.locator("#toasts")).to_contain_text("Copied.")
    assert await page.evaluate("window.copies") == [secret]


async def test_what_cannot_be_copied_is_not_called_copied(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await page.add_init_script(WITHOUT_CLIPBOARD)
    await page.add_init_script("document.execCommand = () => false")
    await visit(page, "/admin/tokens")
    await create_token(page, "nightly")
    shown = page.get_by_role("dialog", name="New token")
    secret = await shown.locator("[data-once-text]").inner_text()
    await shown.get_by_role("button", name="Copy").first.click()
    await page.wait_for_function("(secret) => getSelection().toString() === secret", arg=secret)
    await expect(page.locator("#toasts")).to_be_empty()


async def test_a_button_that_is_drawn_anew_while_it_acts_acts_once(stage: Stage, page_as: Pages) -> None:
    machine = await stage.machine("nova")
    await stage.running.post(f"/api/admin/workers/{machine.id}/drain", {})
    page = await page_as(stage, "admin")
    await visit(page, f"/admin/workers/{machine.id}")
    asked: list[str] = []
    go_on = asyncio.Event()

    async def hold(route: Route) -> None:
        asked.append(route.request.url)
        await go_on.wait()
        await route.continue_()

    await page.route("**/resume", hold)
    button = page.get_by_role("button", name="Resume")
    await button.click()
    await stage.running.http.patch(f"/api/admin/workers/{machine.id}", json={"labels": {"room": "blue"}})
    await expect(page.locator("main")).to_contain_text("room=blue")
    await button.dispatch_event("click")
    await page.evaluate(ASK_SOMETHING)
    go_on.set()
    await expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    assert len(asked) == 1


async def test_the_end_of_a_job_is_told_although_nobody_was_connected(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    work = await stage.begin(name="cats")
    with Proxy(int(stage.url.rpartition(":")[2])) as proxy:
        page = await page_as(Behind(stage, proxy), "admin")
        page_as.watch(page).expect("net::ERR", "Failed to load resource")
        await visit(page, f"/jobs/{work.job_id}")
        await page.get_by_role("button", name="Tell me when it ends").click()
        await page.goto("about:blank")
        await work.report("completed", exit_code=0)
        await visit(page, "/help")
        await expect(page.locator("#toasts")).to_contain_text("cats has completed.")


async def test_an_upload_waits_for_the_next_leader(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("503")
    body = '{"title": "Not the leader", "code": "not_leader", "status": 503, "detail": "another leads"}'
    await answer_first(
        page,
        "**/api/data/objects",
        lambda route: route.fulfill(status=503, content_type="application/problem+json", body=body),
    )
    await visit(page, "/datasets/upload")
    await page.locator("#folder").evaluate("(field) => field.removeAttribute('webkitdirectory')")
    await page.locator("#folder").set_input_files(
        FilePayload(name="a.txt", mimeType="text/plain", buffer=b"a")
    )
    await page.locator("#dataset-name").fill("pets")
    await page.locator("#start").click()
    await page.wait_for_url(re.compile(r"/datasets/[0-9a-f]{64}$"))
