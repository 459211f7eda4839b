"""Pools and machines in the browser: a key is sealed, a pool made and tried, a machine seen with its cost and ended."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.async_api import expect

from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.store.sealing import SealedVault
from tests.web.browser import PHONE, axe, visit
from tests.web.console import Pages
from tests.web.stage import Stage


@pytest.fixture
async def providing(stage: Stage, tmp_path: Path) -> AsyncIterator[Stage]:
    """Providers can be asked, and nobody goes round by himself."""
    deps = stage.running.deps
    deps.fleet.vault = SealedVault.at(tmp_path / "key")
    deps.provisioner = Provisioner(deps.fleet, tmp_path, {}, {})
    yield stage
    await deps.provisioner.stop()


async def put_machine(stage: Stage) -> None:
    now = stage.running.fleet.clock.now()
    machine = Machine(
        id="m_1",
        pool="demo",
        name="stf-f-1",
        state=MachineState.BOOTING,
        created_at=now - 3600.0,
        asked_at=now - 3600.0,
        gpus=2,
        gpu_name="A100",
        vram_gb=80.0,
        offered_micros=2_500_000,
        rates=((now - 3600.0, 2_500_000),),
        provider_id="p_1",
        boot_log="waiting for the network",
    )

    def step(transaction: Transaction) -> None:
        transaction.tx.put_machine(machine)
        transaction.publish("machine", id=machine.id, status="booting")

    await stage.running.fleet.act(step)


async def test_a_pool_is_made_with_a_sealed_key_and_tried(providing: Stage, page_as: Pages) -> None:
    page = await page_as(providing, "admin")
    page_as.watch(page).expect("422")
    await visit(page, "/machines/pools")
    await page.get_by_role("button", name="Store a key").click()
    dialog = page.get_by_role("dialog", name="Store a provider's key")
    await dialog.get_by_label("Name").fill("cloud-key")
    await dialog.get_by_label("Value").fill("rpa_0123456789")
    await dialog.get_by_role("button", name="Store", exact=True).click()
    await expect(dialog).to_be_hidden()
    await page.reload()
    await page.get_by_role("button", name="Create pool").first.click()
    dialog = page.get_by_role("dialog", name="Create pool")
    await dialog.get_by_label("Name", exact=True).fill("demo")
    await dialog.get_by_label("Provider", exact=True).select_option("process")
    await dialog.get_by_label("Secret with the provider's key").select_option("cloud-key")
    await dialog.get_by_label("The provider's settings").fill("gpus=2\ngpu_name=A100\nprice=2.5\nvram=80")
    await dialog.get_by_label("Maximum per day, UTC (USD)").fill("40")
    await dialog.get_by_label("Trainers").fill("demo")
    await axe(page)
    boxes = await dialog.locator("input[type=number], input[inputmode], select").evaluate_all(
        "all => all.map(one => Math.round(one.getBoundingClientRect().height))"
    )
    assert len(set(boxes)) == 1, "a line below or above one field makes no other taller"
    await dialog.get_by_role("button", name="Create", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("has no setting vram")
    await dialog.get_by_label("The provider's settings").fill("gpus=2\ngpu_name=A100\nprice=2.5\nvram_gb=80")
    await dialog.get_by_role("button", name="Show offers and prices").click()
    offers = page.get_by_role("dialog", name="The provider answers")
    await expect(offers.get_by_role("row", name=re.compile("2 . A100 80 GB"))).to_contain_text("2.50 USD")
    await offers.get_by_role("button", name="Close").click()
    await dialog.get_by_role("button", name="Create", exact=True).click()
    row = page.get_by_role("row", name=re.compile("demo"))
    await expect(row).to_contain_text("0.00 USD / 40.00 USD")
    await row.get_by_role("button", name="Test demo").click()
    offers = page.get_by_role("dialog", name="The provider answers")
    await expect(offers.get_by_role("row", name=re.compile("2 . A100 80 GB"))).to_contain_text("2.50 USD")
    await axe(page)
    assert "rpa_0123456789" not in await page.content()


async def test_a_name_that_is_taken_is_not_written_over_and_a_pool_is_changed_and_deleted(
    providing: Stage, page_as: Pages
) -> None:
    request = {
        "provider": "process",
        "trainers": ["demo"],
        "max_daily_micros": 40_000_000,
        "min_machines": 2,
        "max_machines": 3,
        "kinds": ["A100*"],
        "settings": {"gpus": "1"},
    }
    await providing.running.http.put("/api/pools/demo", json=request)
    page = await page_as(providing, "admin")
    page_as.watch(page).expect("409")
    await visit(page, "/machines/pools")
    await page.get_by_role("button", name="Create pool").first.click()
    dialog = page.get_by_role("dialog", name="Create pool")
    await dialog.get_by_label("Name", exact=True).fill("demo")
    await dialog.get_by_role("button", name="Create", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("There is a pool demo already.")
    await visit(page, "/machines/pools/demo")
    await page.get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog", name="Change pool")
    await expect(dialog.get_by_label("The provider's settings")).to_have_value("gpus=1\n")
    await dialog.get_by_label("Maximum machines").fill("7")
    await dialog.get_by_label("Maximum per day, UTC (USD)").fill("")
    await dialog.get_by_role("button", name="Save").click()
    facts = page.get_by_role("region", name="Money and limits")
    await expect(facts).to_contain_text("0 / 7")
    for term, value in (
        ("Minimum machines", "2"),
        ("GPUs", "A100*"),
        ("Regions", "any"),
        ("The provider's settings", "gpus=1"),
    ):
        shown = facts.locator("dl > div").filter(has=page.get_by_text(term, exact=True))
        await expect(shown.locator("dd")).to_have_text(value)
    saved = (await providing.running.get("/api/pools/demo"))["request"]
    assert (saved["max_daily_micros"], saved["settings"], saved["max_machines"]) == (None, {"gpus": "1"}, 7)
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No pools yet")).to_be_visible()


async def test_a_machine_shows_its_phase_cost_and_log_live_and_is_ended(
    providing: Stage, page_as: Pages
) -> None:
    request = {"provider": "process", "trainers": ["demo"]}
    await providing.running.http.put("/api/pools/demo", json=request)
    page = await page_as(providing, "admin")
    await visit(page, "/machines")
    await expect(page.get_by_text("A job starts one where a pool allows it.")).to_be_visible()
    await put_machine(providing)
    row = page.get_by_role("row", name=re.compile("2 x A100 80 GB"))
    await expect(row).to_contain_text("Booting")
    await expect(row).to_contain_text("2.50 USD")
    await expect(row).to_contain_text("Costs money and has not joined")
    await visit(page, "/")
    needs = page.get_by_role("region", name="Needs attention")
    await expect(needs).to_contain_text("1 machine costs money and does nothing")
    await needs.get_by_role("link", name="demo: 2 x A100 80 GB").click()
    await expect(page.get_by_role("region", name="Boot log")).to_contain_text("waiting for the network")
    await axe(page)
    await page.get_by_role("button", name="Destroy now").click()
    await page.get_by_role("dialog").get_by_role("button", name="Destroy now").click()
    await expect(page.locator("#machine-phase")).to_contain_text("Being destroyed")
    await expect(page.locator("#machine-phase")).to_contain_text("Somebody ended it")


async def test_a_worker_whose_machine_is_taken_away_says_so_live(stage: Stage, page_as: Pages) -> None:
    machine = await stage.machine()
    page = await page_as(stage, "admin")
    await visit(page, f"/admin/workers/{machine.id}")
    note = page.get_by_text("Its machine is about to be taken away", exact=True)
    await expect(note).to_have_count(0)
    await machine.heartbeat(status="leaving", notice={"source": "gcp", "in_s": 25.0})
    await expect(note.first).to_be_visible()
    await expect(page.locator("#draining")).to_contain_text("gcp")


async def test_a_viewer_looks_and_changes_nothing(providing: Stage, page_as: Pages) -> None:
    request = {"provider": "process", "trainers": ["demo"]}
    await providing.running.http.put("/api/pools/demo", json=request)
    await put_machine(providing)
    page = await page_as(providing, "viewer")
    for path in ("/machines", "/machines/m_1", "/machines/pools", "/machines/pools/demo"):
        await visit(page, path)
        for name in ("Create pool", "Test", "Change", "Delete", "End", "Destroy now", "Store a key"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)


FROM_ONE_NUMBER_TO_THE_NEXT = """(cell) => {
  const [first, second] = [...cell.querySelectorAll("data")].map((one) => one.getBoundingClientRect());
  return second.left - first.right;
}"""


async def test_on_a_phone_the_number_of_machines_stands_beside_the_most_there_may_be(
    providing: Stage, page_as: Pages
) -> None:
    await providing.running.http.put("/api/pools/demo", json={"provider": "process", "trainers": ["demo"]})
    page = await page_as(providing, "admin", size=PHONE)
    await visit(page, "/machines/pools")
    cell = page.locator("td[data-label=Machines]")
    assert await cell.evaluate(FROM_ONE_NUMBER_TO_THE_NEXT) < 30


async def test_the_train_page_says_which_pools_may_bring_a_machine_and_that_none_does(
    providing: Stage, page_as: Pages
) -> None:
    fleet = providing.running.fleet
    request = PoolRequest(provider="nobody", max_machines=2, settings={"gpus": "1"})
    on = MachinePool(name="cloud", request=request, created_at=1.0, created_by="u_1")
    off = replace(on, name="resting", request=replace(request, enabled=False))
    page = await page_as(providing, "admin")
    await visit(page, "/train")
    said = page.locator("#from-pools")
    await expect(said).to_contain_text("No pool brings machines")
    await fleet.act(lambda transaction: transaction.tx.put_pool(on))
    await fleet.act(lambda transaction: transaction.tx.put_pool(off))
    await visit(page, "/train")
    await expect(said).to_have_text(
        "When no worker can take the job, Worker and Auto may start a machine from: cloud."
    )
    await fleet.act(lambda transaction: transaction.tx.put_setting(HANDS_OFF, "1.0"))
    await visit(page, "/train")
    await expect(said).to_contain_text("No pool brings machines")
