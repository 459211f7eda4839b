"""Prices, costs, budgets and reports over every store: real routes, real sockets, a clock one can turn."""

import csv
import io
from typing import Any

from simpletuner_fleet.orchestrator.organising.quota_watch import watch_quotas
from simpletuner_fleet.ports import Store
from tests.http.api_kit import GPU_CONFIG, Running, orchestrator

HOUR_S = 3600.0


async def events(running: Running, kind: str) -> list[dict[str, Any]]:
    entries = (await running.get("/api/audit", event_type=kind))["entries"]
    return [entry["details"] for entry in reversed(entries)]


async def test_what_jobs_cost_from_the_price_to_the_report(store: Store) -> None:
    async with orchestrator(store) as running:
        assert (await running.get("/api/prices")) == {"currency": "USD", "rules": [], "unreadable": []}
        await running.http.put("/api/prices/currency", json={"currency": "EUR"})
        await running.save_config("cats", GPU_CONFIG)
        agent = await running.worker("gpu-1", gpus=2)
        free = await running.submit(config_name="cats", dry_run=True)
        assert free["estimate"] is None, "nobody has said what a GPU costs"

        rule = await running.post("/api/prices", {"price_micros": 2_500_000, "gpu": "*a100*"})
        refused = await running.http.put("/api/prices/currency", json={"currency": "USD"})
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        limited = await running.submit(config_name="cats", gpus=2, time_limit_s=2 * HOUR_S, dry_run=True)
        assert limited["estimate"]["sure"] == "ceiling"
        assert (limited["estimate"]["currency"], limited["estimate"]["high_micros"]) == ("EUR", 10_000_000)

        job = (await running.submit(config_name="cats", gpus=2))["job_id"]
        offer = await agent.take()
        running.clock.at += HOUR_S
        await agent.heartbeat(offer)
        await running.http.delete(f"/api/prices/{rule['id']}")
        cost = (await running.job(job))["cost"]
        assert (cost["micros"], cost["currency"], cost["at_least"]) == (5_000_000, "EUR", False)
        assert (cost["hourly_micros"], cost["live_micros"]) == (5_000_000, 5_000_000)
        await agent.report(offer, "completed", exit_code=0)
        running.clock.at += HOUR_S
        ended = (await running.job(job))["cost"]
        assert (ended["micros"], ended["hourly_micros"]) == (5_000_000, 0), (
            "at the last price that anybody said"
        )

        unpriced = (await running.submit(config_name="cats"))["job_id"]
        await agent.report(await agent.take(), "completed", exit_code=0)
        assert (await running.job(unpriced))["cost"] is None, "not known is not 0"
        await running.http.patch(f"/api/admin/workers/{agent.id}", json={"price_micros": 1_000_000})
        worker = await running.get(f"/api/admin/workers/{agent.id}")
        assert (worker["price_micros"], worker["effective_price_micros"]) == (1_000_000, 1_000_000)
        guess = (await running.submit(config_name="cats", gpus=2, dry_run=True))["estimate"]
        assert (guess["sure"], guess["runs"], guess["likely_micros"]) == ("rough", 1, 2_000_000)

        running.clock.at += 60
        report = await running.get("/api/usage", by="config", since="1d")
        assert [(line["name"], line["cost_micros"], line["gpu_hours"]) for line in report["lines"]] == [
            ("cats", 5_000_000, 2.0)
        ]
        by_gpu = await running.get("/api/usage", by="gpu", since="1d")
        assert [line["name"] for line in by_gpu["lines"]] == ["NVIDIA A100"]
        exported = await running.http.get("/api/usage/export", params={"by": "gpu", "since": "1d"})
        assert exported.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(exported.text)))
        assert [(row["name"], row["cost"], row["currency"]) for row in rows] == [
            ("NVIDIA A100", "5.000000", "EUR")
        ]
        for query in ({"since": "500d"}, {"since": "1h", "until": "2h"}, {"by": "moon"}):
            assert (await running.http.get("/api/usage", params=query)).status_code == 422
        idle = (await running.get("/api/prices/idle"))["now"]
        assert (idle["gpus"], idle["idle_gpus"], idle["idle_hourly_micros"]) == (2, 2, 2_000_000)
        assert [one["currency"] for one in await events(running, "currency.set")] == ["EUR"]
        assert [one["price_micros"] for one in await events(running, "price.set")] == [2_500_000]
        assert len(await events(running, "price.deleted")) == 1
        assert await events(running, "worker.price_set") == [{"price_micros": 1_000_000, "was": None}]


async def test_a_worker_says_its_own_price_and_an_absurd_one_is_none(store: Store) -> None:
    async with orchestrator(store) as running:
        agent = await running.worker("gpu-1", gpus=1, price_micros=700_000)
        worker = await running.get(f"/api/admin/workers/{agent.id}")
        assert (worker["reported_price_micros"], worker["effective_price_micros"]) == (700_000, 700_000)
        await agent.register(gpus=1, price_micros=2**52)
        worker = await running.get(f"/api/admin/workers/{agent.id}")
        assert (worker["reported_price_micros"], worker["effective_price_micros"]) == (None, None)


async def test_a_budget_holds_jobs_tells_once_and_counts_on_after_a_restart(store: Store) -> None:
    config = {"config": GPU_CONFIG}
    async with orchestrator(store) as running:
        await running.post("/api/prices", {"price_micros": 1_000_000})
        quota = await running.post(
            "/api/quotas", {"kind": "money_month", "scope": "all", "ceiling": 10_000_000}
        )
        assert (quota["ceiling"], quota["unit"]) == (10_000_000, "USD")
        agent = await running.worker("gpu-1", gpus=2)
        first = await running.submit(**config)
        offer = await agent.take()
        for _ in range(9):
            running.clock.at += HOUR_S
            await agent.heartbeat(offer)
            await watch_quotas(running.fleet)
        said = await events(running, "quota.nearly_used")
        assert [one["used"] for one in said] == ["8.00 USD"], "once"
        (budget,) = (await running.get("/api/budgets"))["budgets"]
        assert (budget["spent_micros"], budget["left_micros"], budget["hourly_micros"]) == (
            *(9_000_000, 1_000_000, 1_000_000),
        )
        assert budget["reached_at"] is not None
        running.clock.at += HOUR_S
        await agent.heartbeat(offer)
        await watch_quotas(running.fleet)
        assert [one["used"] for one in await events(running, "quota.reached")] == ["10.00 USD"]
        held = await running.submit(**config)
        assert held["status"] == "queued"
        assert held["explain"]["code"] == "QUOTA"
        assert "10.00 USD of 10.00 USD" in held["explain"]["sentence"]
        assert held["quotas"][0]["used_micros"] == 10_000_000
        await agent.report(offer, "completed", exit_code=0)
        assert (await running.job(held["job_id"]))["status"] == "queued"
        clock = running.clock
    async with orchestrator(store, clock=clock) as running:
        mine = (await running.get("/api/quotas/me"))["quotas"]
        assert [(one["used"], one["left"], one["at_least"]) for one in mine] == [(10_000_000, 0, False)]
        await watch_quotas(running.fleet)
        assert len(await events(running, "quota.reached")) == 1, "told before the restart"
        await running.http.patch(f"/api/quotas/{quota['id']}", json={"action": "refuse"})
        refused = await running.http.post("/api/queue/submit", json=config)
        assert refused.status_code == 409
        assert "10.00 USD of 10.00 USD are used" in refused.json()["detail"]
        assert (await running.job(first["job_id"]))["cost"]["micros"] == 10_000_000
        wrong = await running.http.patch(f"/api/quotas/{quota['id']}", json={"ceiling": 1.5})
        assert wrong.status_code == 422


async def test_dear_jobs_need_an_approval_and_so_do_those_of_which_nobody_can_say() -> None:
    async with orchestrator() as running:
        rule = {"name": "dear", "cost_over_micros": 5_000_000, "by": "admins", "exempts_approvers": False}
        await running.post("/api/approvals/rules", rule)
        await running.worker("gpu-1", gpus=4)
        config = {"config": GPU_CONFIG}
        unknown = await running.submit(**config, time_limit_s=60)
        assert unknown["status"] == "blocked", "the price is not known"
        await running.post("/api/prices", {"price_micros": 1_000_000})
        assert (await running.submit(**config))["status"] == "blocked", "nor how long it takes"
        assert (await running.submit(**config, time_limit_s=6 * HOUR_S))["status"] == "blocked"
        assert (await running.submit(**config, time_limit_s=4 * HOUR_S))["status"] == "dispatched"
        asked = await running.http.post("/api/approvals/rules", json={**rule, "cost_over_micros": 2**53})
        assert asked.status_code == 422
