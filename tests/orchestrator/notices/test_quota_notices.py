"""A budget that is nearly used, and then used, is told to a webhook: once each, and to nobody whom it does not concern."""

from pathlib import Path

from simpletuner_fleet.orchestrator.organising.quota_watch import watch_quotas
from tests.delivery.receivers import Certificates, hook
from tests.http.api_kit import GPU_CONFIG
from tests.orchestrator.notices.notifying_server import notifying_server

HOUR_S = 3600.0
EVENTS = ["quota.nearly_used", "quota.reached"]


async def test_a_budget_that_runs_out_reaches_a_webhook_once_for_each_step(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as mine, hook() as strangers:
        running = here.running
        await here.add(mine.url, events=EVENTS, scope="all")
        stranger = await running.token("notifications.own", name="stranger")
        await here.add(strangers.url, token=stranger, events=EVENTS)
        await running.post("/api/prices", {"price_micros": 1_000_000})
        quota = {"kind": "money_month", "scope": "all", "ceiling": 5_000_000}
        made = await running.post("/api/quotas", quota)
        agent = await running.worker("gpu-1", gpus=2)
        await running.submit(config=GPU_CONFIG)
        offer = await agent.take()
        for _ in range(7):
            running.clock.at += HOUR_S
            await agent.heartbeat(offer)
            await watch_quotas(running.fleet)
        first, second = await mine.has(2)
        assert [one.document["type"] for one in (first, second)] == EVENTS
        assert made["id"] in str(second.document["data"])
        assert "5.00 USD" in str(second.document["data"])
        assert len(await running.get("/api/audit", event_type="quota.reached")) > 0
        assert len(mine.got) == 2
        assert strangers.got == []
