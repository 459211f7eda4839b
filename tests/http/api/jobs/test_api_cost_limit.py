"""A job says what it may cost: it waits, is stopped in time, and goes on where more is allowed, over every store."""

from pathlib import Path

from simpletuner_fleet.core.money.amounts import MAX_MICROS
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store import open_store
from tests.http.api_kit import Running, orchestrator

HOUR_S = 3600.0


async def edited(running: Running, job: str, **changes: object) -> dict[str, object]:
    answer = await running.http.patch(f"/api/jobs/{job}", json=changes)
    assert answer.status_code == 200, answer.text
    changed: dict[str, object] = answer.json()
    return changed


async def test_a_job_waits_for_a_known_price_and_for_enough_money(store: Store) -> None:
    async with orchestrator(store) as running:
        agent = await running.worker(gpus=2, name="desk")
        job = (await running.submit(gpus=2, max_cost_micros=100_000))["job_id"]
        unknown = (await running.job(job))["explain"]
        assert unknown["code"] == "PRICE_UNKNOWN"
        assert unknown["sentence"] == (
            "the job has a cost limit, and the price of matching workers is not known: desk"
        )
        await running.http.patch(f"/api/admin/workers/{agent.id}", json={"price_micros": 6_000_000})
        dear = (await running.job(job))["explain"]
        assert (dear["code"], dear["params"]["max_cost_micros"]) == ("COST_LIMIT", 100_000)
        assert dear["sentence"] == (
            "0.10 USD is left of the job's cost limit, which does not pay for 120 s on the cheapest matching worker: "
            "desk, 12.00 USD an hour"
        )
        assert dear["fixes"] == ["Raise the limit: simpletuner jobs edit JOB --max-cost AMOUNT"]
        dry = await running.submit(gpus=2, max_cost_micros=100_000, dry_run=True)
        assert dry["would_start_now"] is False
        other = (await running.submit(gpus=1, max_cost_micros=100_000))["job_id"]
        assert (await running.job(other))["explain"]["code"] == "COST_LIMIT"
        changed = await edited(running, job, max_cost_micros=400_000, on_max_cost="finish")
        assert (changed["max_cost_micros"], changed["on_max_cost"]) == (400_000, "finish")
        assert (await agent.take())["job_id"] == job
        lifted = await edited(running, other, max_cost_micros=None)
        assert (lifted["max_cost_micros"], lifted["on_max_cost"]) == (None, "stop")
        await running.save_config("c")
        for wrong in ({"on_max_cost": "finish"}, {"max_cost_micros": -1}, {"max_cost_micros": 10**16}):
            refused = await running.http.post("/api/queue/submit", json={"config_name": "c", **wrong})
            assert refused.status_code in (400, 422), refused.text


async def test_a_training_is_stopped_before_its_job_costs_too_much_and_goes_on_with_more(
    store: Store,
) -> None:
    async with orchestrator(store) as running:
        agent = await running.worker(gpus=1)
        await running.http.patch(f"/api/admin/workers/{agent.id}", json={"price_micros": 1_000_000})
        job = (await running.submit(gpus=1, max_cost_micros=2_000_000))["job_id"]
        offer = await agent.take()
        await agent.heartbeat(offer)
        running.clock.at += HOUR_S
        await agent.heartbeat(offer)
        await sweep_once(running.fleet)
        assert (await running.job(job))["stopping"] is None
        await running.http.patch(f"/api/admin/workers/{agent.id}", json={"price_micros": 3_000_000})
        cost = (await running.job(job))["cost"]
        assert (cost["micros"], cost["hourly_micros"]) == (1_000_000, 3_000_000)
        running.clock.at += 0.26 * HOUR_S
        await agent.heartbeat(offer)
        await sweep_once(running.fleet)
        near = await running.job(job)
        assert near["cost"]["micros"] == 1_780_000, "an hour for 1, and what came after for 3"
        assert near["stopping"]["reason"] == "cost_limit"
        assert near["stopping"]["sentence"].startswith("near its cost limit:")
        order = await agent.events.next("job_cancel")
        assert (order["reason"], order["save_s"] > 0) == ("drained", True)
        running.clock.at += 60.0
        await agent.report(offer, "released", reason="drained", error="the worker was drained")
        ended = await running.job(job)
        assert (ended["status"], ended["reason"], ended["failure"]["class"]) == (
            "failed",
            "cost_limit",
            "cost_limit",
        )
        assert ended["spent_micros"] == ended["cost"]["micros"] == 1_830_000
        assert ended["error"] == "the cost limit of 2 would have been passed; 1.83 was spent"
        report = await running.get("/api/usage", by="config", since="1d")
        assert [line["cost_micros"] for line in report["lines"]] == [1_830_000]

        again = await running.post(f"/api/jobs/{job}/retry")
        assert (again["max_cost_micros"], again["spent_micros"], again["status"]) == (
            2_000_000,
            1_830_000,
            "dispatched",
        ), "what is left still pays for a while"
        await running.post(f"/api/jobs/{again['id']}/cancel")
        more = await running.post(f"/api/jobs/{job}/retry", {"max_cost_micros": 1_900_000})
        assert more["explain"]["code"] == "COST_LIMIT"
        refused = await running.http.post(f"/api/jobs/{job}/retry", json={"max_cost_micros": MAX_MICROS + 1})
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "$.max_cost_micros")
        lifted = await running.post(f"/api/jobs/{job}/retry", {"max_cost_micros": None})
        assert (lifted["max_cost_micros"], lifted["status"]) == (None, "dispatched")


async def test_a_job_that_may_finish_is_not_stopped_but_begins_no_further_attempt(store: Store) -> None:
    async with orchestrator(store) as running:
        agent = await running.worker(gpus=1)
        await running.http.patch(f"/api/admin/workers/{agent.id}", json={"price_micros": 1_000_000})
        job = (await running.submit(gpus=1, max_cost_micros=500_000, on_max_cost="finish"))["job_id"]
        offer = await agent.take()
        running.clock.at += HOUR_S
        await agent.heartbeat(offer)
        await sweep_once(running.fleet)
        assert (await running.job(job))["stopping"] is None
        await agent.report(offer, "released", reason="preempted", error="the worker was asked to stop")
        await agent.heartbeat()
        waiting = await running.job(job)
        assert (waiting["status"], waiting["explain"]["code"]) == ("queued", "COST_LIMIT")
        assert waiting["spent_micros"] == 1_000_000
        await edited(running, job, max_cost_micros=1_500_000)
        assert (await agent.take())["job_id"] == job


async def test_what_is_watched_is_known_again_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    first = open_store(url)
    async with orchestrator(first) as running:
        agent = await running.worker(gpus=1)
        await running.http.patch(f"/api/admin/workers/{agent.id}", json={"price_micros": 1_000_000})
        await running.submit(gpus=1, max_cost_micros=1_000_000)
        await agent.take()
        began = running.clock.at
    await first.close()
    second = open_store(url)
    async with orchestrator(second) as restarted:
        restarted.clock.at = began + HOUR_S / 2
        await restarted.fleet.act(lambda transaction: None)
        assert restarted.fleet.ceilings_near() == []
        restarted.clock.at = began + HOUR_S - 60.0
        assert len(restarted.fleet.ceilings_near()) == 1
    await second.close()
