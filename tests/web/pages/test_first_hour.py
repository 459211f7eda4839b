"""What pages say in the first hour: a demo to run, an address that others reach, and GPUs that nobody uses."""

import html
import json
import re

from simpletuner_fleet.web import routes
from tests.http.api_kit import orchestrator
from tests.web.pages.test_create_worker import page_of


async def test_an_empty_console_runs_the_demo_at_the_press_of_a_button() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        text = await page_of(running, "/")
        assert "Run the demo now" in text
        match = re.search(r'data-body="([^"]*)"', text)
        assert match
        submitted = await running.submit(**json.loads(html.unescape(match[1])))
        job = await running.job(submitted["job_id"])
        assert (job["name"], job["status"]) == ("demo", "queued")


async def test_the_page_that_creates_workers_says_that_nobody_else_reaches_the_server() -> None:
    async with orchestrator(
        pages=routes.ROUTES, line_for_others="simpletuner server --host 0.0.0.0"
    ) as running:
        text = await page_of(running, "/admin/workers/create")
        assert "Only this machine can reach the server" in text
        assert "simpletuner server --host 0.0.0.0" in text
    async with orchestrator(pages=routes.ROUTES, public_url="https://fleet.example") as running:
        assert "Only this machine" not in await page_of(running, "/admin/workers/create")


async def test_a_server_for_others_names_their_address_and_the_further_ones() -> None:
    addresses = ["10.0.0.5", "10.1.0.5"]
    async with orchestrator(bound_to="0.0.0.0", addresses=lambda: addresses) as running:
        created = await running.create_worker("gpu-1")
        assert "--orchestrator-url http://10.0.0.5:" in created["connection_command"]
        assert created["address"]["sure"] == "guessed"
        assert [one.startswith("http://10.1.0.5:") for one in created["address"]["others"]] == [True]


async def test_gpus_that_no_job_gets_are_told_with_what_would_use_them() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        agent = await running.worker(gpus=7)
        await running.submit(gpus=1)
        await agent.accept(await agent.offer())
        text = await page_of(running, f"/admin/workers/{agent.id}")
        assert "6 GPUs unused: this worker takes one job at a time." in text
        assert "--max-jobs auto" in text
        assert "1 worker has unused GPUs" in await page_of(running, "/")
        waiting = await running.submit(gpus=2)
        explained = await running.get(f"/api/jobs/{waiting['job_id']}/explain")
        assert "has unused GPUs (6)" in explained["fixes"][0]
