"""Notifications: set up in the page, tried, seen in the history, and said on the overview where it fails."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.async_api import expect

from simpletuner_fleet.core.notices.endpoint import EndpointPause
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.sender import MessageSender
from simpletuner_fleet.orchestrator.notices.deliverer import Deliverer
from simpletuner_fleet.store.sealing import SealedVault
from tests.delivery.conftest import LOOPBACK
from tests.delivery.receivers import hook
from tests.web.browser import axe, visit
from tests.web.console import Pages
from tests.web.stage import Stage


@pytest.fixture
async def telling(stage: Stage, tmp_path: Path) -> AsyncIterator[Stage]:
    deps = stage.running.deps
    deps.fleet.vault = SealedVault.at(tmp_path / "key")
    deps.deliverer = Deliverer(deps.fleet, MessageSender(OutboundConnector(LOOPBACK), None, "", "host"))
    deps.deliverer.start()
    yield stage
    await deps.deliverer.stop()


async def test_a_webhook_is_added_tried_and_its_history_shown(telling: Stage, page_as: Pages) -> None:
    page = await page_as(telling, "admin")
    async with hook() as receiver:
        await visit(page, "/notifications")
        await page.get_by_role("button", name="Add notification").first.click()
        dialog = page.get_by_role("dialog", name="Add notification")
        await dialog.get_by_label("Name").fill("ops")
        await expect(dialog.get_by_label("Quiet hours")).to_be_visible()
        await dialog.get_by_label("Channel").select_option("webhook")
        await expect(dialog.get_by_label("Quiet hours")).to_be_hidden()
        await dialog.get_by_label("Address").fill(receiver.url)
        await axe(page)
        await dialog.get_by_role("button", name="Add", exact=True).click()
        shown = page.get_by_role("dialog", name="Signing secret")
        assert (await shown.locator("pre").inner_text()).startswith("whsec_")
        await shown.get_by_role("button", name="Done").click()
        row = page.get_by_role("row", name=re.compile("ops"))
        await expect(row).to_contain_text("Active")
        await row.get_by_role("button", name="Test ops").click()
        await expect(page.get_by_text("The test message has arrived.")).to_be_visible()
        assert receiver.got[0].document["type"] == "test"
        await row.get_by_role("link", name="ops").click()
        history = page.get_by_role("region", name="History")
        await expect(history).to_contain_text("HTTP 200")
        await axe(page)
        receiver.statuses = [500]
        await page.get_by_role("button", name="Send a test message").click()
        await expect(history).to_contain_text("HTTP 500")
        await page.get_by_role("button", name="Pause").click()
        await page.get_by_role("button", name="Resume").click()
        await page.get_by_role("button", name="Change").click()
        dialog = page.get_by_role("dialog", name="Change notification")
        await dialog.get_by_label("Name").fill("on call")
        await dialog.get_by_label("My job has waited too long").check()
        await dialog.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("region", name="Settings")).to_contain_text("waited too long")
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_text("No notifications yet")).to_be_visible()


async def test_an_endpoint_that_fails_is_said_on_its_owners_overview_and_to_nobody_else(
    telling: Stage, page_as: Pages
) -> None:
    await telling.machine()
    page = await page_as(telling, "member")
    await visit(page, "/notifications")
    await page.get_by_role("button", name="Add notification").first.click()
    dialog = page.get_by_role("dialog", name="Add notification")
    await expect(dialog.get_by_text("A worker was lost")).to_have_count(0)
    await dialog.get_by_label("Name").fill("chat")
    await dialog.get_by_label("Address").fill("https://hooks.slack.com/services/T/B/0123456789ab")
    await dialog.get_by_label("Quiet hours").fill("22:00-07:00")
    await dialog.get_by_role("button", name="Add", exact=True).click()
    await expect(page.get_by_role("row", name=re.compile("chat"))).to_contain_text("…89ab")
    fleet = telling.running.fleet
    [endpoint] = await fleet.read(lambda view: view.endpoints())
    failed = replace(endpoint, paused=EndpointPause(at=1.0, why="HTTP 410"))
    await fleet.act(lambda transaction: transaction.tx.put_endpoint(failed))
    await visit(page, "/")
    await page.get_by_role("link", name="1 notification cannot be delivered or is paused").click()
    await expect(page.get_by_role("row", name=re.compile("chat"))).to_contain_text("HTTP 410")
    other = await page_as(telling, "viewer")
    await visit(other, "/notifications")
    await expect(other.get_by_text("No notifications yet")).to_be_visible()
    answer = await other.context.request.get(f"{telling.url}/notifications?endpoint={endpoint.id}")
    assert answer.status == 404
