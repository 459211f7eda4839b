"""Jobs are found by anything, listed in any order and both ways, counted exactly, written on and acted on together."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.queries import explainer
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import CPU_CONFIG, Running, orchestrator


def counted(number: int, *, at_least: bool = False) -> dict[str, Any]:
    return {"count": number, "at_least": at_least}


async def ids(running: Running, **query: Any) -> list[str]:
    return [job["id"] for job in (await running.get("/api/jobs", **query))["jobs"]]


async def test_jobs_are_found_by_each_part_of_a_search() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        one = (await running.submit(name="nightly cats"))["job_id"]
        offer = await agent.take()
        await agent.report(
            offer, "failed", exit_code=1, last_lines="torch.OutOfMemoryError: CUDA out of memory"
        )
        running.clock.at += 3600
        two = (await running.submit(worker_labels={"gpu_type": "h100"}, gpus=1))["job_id"]
        three = (await running.submit(config={**CPU_CONFIG, "trainer": "demo"}))["job_id"]
        await running.post(f"/api/jobs/{one}/tags", {"add": ["Paper", "cats"]})
        me = (await running.get(f"/api/jobs/{one}"))["owner"]

        assert await ids(running, q="NIGHTLY") == [one]
        assert await ids(running, tag="paper") == [one]
        assert await ids(running, tag=["paper", "dogs"]) == []
        assert await ids(running, label="gpu_type=h100") == [two]
        assert await ids(running, trainer="demo") == [three]
        assert await ids(running, worker="gpu-1") == await ids(running, worker_id=agent.id) == [one]
        assert await ids(running, owner="admin") == await ids(running, owner=me) == [three, two, one]
        assert await ids(running, reason="gpu_out_of_memory") == [one]
        assert await ids(running, reason="TRAINER_MISSING") == [three]
        assert await ids(running, reason="change") == [two]
        assert await ids(running, reason="impossible") == [three, two]
        assert await ids(running, since="30m") == [three, two]
        assert await ids(running, until="30m") == [one]
        assert await ids(running, ended_since="2h") == [one]
        assert await ids(running, sort="-created") == [one, two, three]
        assert await ids(running, sort="finished", status="failed") == [one]
        for bad in ("sort=owner", "label=x", "tag=a b", "since=soon", "reason=" + "x" * 201):
            assert (await running.http.get(f"/api/jobs?{bad}")).status_code == 422, bad


async def test_pages_go_both_ways_and_say_where_they_are() -> None:
    async with orchestrator() as running:
        made = [(await running.submit(name=f"n{n}"))["job_id"] for n in range(7)]
        first = await running.get("/api/jobs", sort="name", limit=3)
        assert ([job["id"] for job in first["jobs"]], first["previous"], first["first"]) == (
            made[:3],
            None,
            1,
        )
        second = await running.get("/api/jobs", sort="name", limit=3, cursor=first["next"])
        assert ([job["id"] for job in second["jobs"]], second["first"]) == (made[3:6], 4)
        last = await running.get("/api/jobs", sort="name", limit=3, cursor=second["next"])
        assert ([job["id"] for job in last["jobs"]], last["next"], last["first"]) == (made[6:], None, 7)
        back = await running.get("/api/jobs", sort="name", limit=3, cursor=last["previous"])
        assert back["jobs"] == second["jobs"]
        assert back["first"] == 4
        begin = await running.get("/api/jobs", sort="name", limit=3, cursor=back["previous"])
        assert (begin["jobs"], begin["previous"], begin["first"]) == (first["jobs"], None, 1)
        assert begin["total"] == 7
        assert begin["by_state"] == {"queued": 7}
        wrong = await running.http.get("/api/jobs", params={"cursor": first["next"]})
        assert wrong.status_code == 422


async def test_what_is_written_on_a_job_is_kept_and_in_its_history() -> None:
    async with orchestrator() as running:
        job = (await running.submit())["job_id"]
        answer = await running.post(f"/api/jobs/{job}/tags", {"add": ["b", "a"], "remove": ["x"]})
        assert answer["tags"] == ["a", "b"]
        answer = await running.post(f"/api/jobs/{job}/tags", {"remove": ["b"]})
        assert answer["tags"] == ["a"]
        noted = await running.http.put(f"/api/jobs/{job}/note", json={"note": " why it\r\nmatters "})
        assert noted.json()["note"] == "why it\nmatters"
        await running.post(f"/api/jobs/{job}/tags", {"add": ["a"]})
        kinds = [one["event_type"] for one in (await running.get(f"/api/jobs/{job}/events"))["events"]]
        assert kinds.count("job.tagged") == 2
        assert kinds.count("job.noted") == 1
        refused = await running.http.post(f"/api/jobs/{job}/tags", json={"add": ["two words"]})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["path"] == "$.add"


async def test_an_act_on_all_that_match_needs_their_exact_number() -> None:
    async with orchestrator() as running:
        made = [(await running.submit(name=f"night-{n}"))["job_id"] for n in range(4)]
        other = (await running.submit(name="other"))["job_id"]
        search = {"q": "night-"}
        body = {"search": search, "act": "cancel"}
        assert await running.post("/api/matching/count", body) == counted(4)
        wrong = await running.http.post("/api/matching/cancel", json={"search": search, "expected": 3})
        assert (wrong.status_code, wrong.json()["code"]) == (409, "count_changed")
        assert len(await ids(running, status="queued")) == 5
        done = await running.post("/api/matching/cancel", {"search": search, "expected": 4})
        assert done == {"done": 4, "refused": 0, "refusals": [], "next": None, "at_least": False}
        assert await ids(running, status="queued") == [other]
        assert await running.post("/api/matching/count", body) == counted(0)

        assert await running.post("/api/matching/count", {**body, "act": "retry"}) == counted(4)
        again = {"search": {**search, "status": ["cancelled"]}, "expected": 4}
        assert (await running.post("/api/matching/retry", again))["done"] == 4
        assert await running.post("/api/matching/count", {**body, "act": "retry"}) == counted(0)
        assert len(await ids(running, status="queued")) == 5

        tagged = {"search": search, "expected": 8, "add": ["batch"]}
        assert (await running.post("/api/matching/tags", tagged))["done"] == 8
        assert len(await ids(running, tag="batch")) == 8
        moved = {"search": {"tag": ["batch"]}, "expected": 4, "priority": "high"}
        assert (await running.post("/api/matching/priority", moved))["done"] == 4
        assert {
            job["priority"] for job in (await running.get("/api/jobs", status="queued", q="night-"))["jobs"]
        } != {0}
        entries = (await running.get("/api/audit", event_type="job.chosen_by_filter"))["entries"]
        assert [one["details"]["act"] for one in entries] == ["priority", "tags", "retry", "cancel"]
        assert entries[-1]["details"] == {"act": "cancel", "jobs": 4, "search": search}
        assert (await running.get(f"/api/jobs/{made[0]}"))["status"] == "cancelled"


async def test_an_act_on_very_many_goes_on_where_the_call_before_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from simpletuner_fleet.orchestrator.steering import matching

    monkeypatch.setattr(matching, "JOBS_PER_CALL", 3)
    monkeypatch.setattr(matching, "JOBS_PER_TRANSACTION", 2)
    async with orchestrator() as running:
        for _ in range(7):
            await running.submit()
        body: dict[str, Any] = {"search": {}, "expected": 7}
        done = []
        while True:
            answer = await running.post("/api/matching/cancel", body)
            done.append(answer["done"])
            if not answer["next"]:
                break
            body["cursor"] = answer["next"]
        assert done == [3, 3, 1]
        assert await ids(running, status="queued") == []


@pytest.mark.parametrize(
    ("search", "path"),
    [
        ({"tag": [f"t{number}" for number in range(9_000)]}, "$.tag"),
        ({"label": [f"k{number}=v" for number in range(9_000)]}, "$.label"),
    ],
)
async def test_a_search_for_more_than_any_job_has_is_refused(search: dict[str, Any], path: str) -> None:
    """Each was a condition of its own, of which a database takes a thousand."""
    async with orchestrator() as running:
        refused = await running.http.post("/api/matching/count", json={"search": search, "act": "cancel"})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["path"] == path


async def test_what_is_said_many_times_is_searched_for_once() -> None:
    async with orchestrator() as running:
        job = (await running.submit())["job_id"]
        await running.post(f"/api/jobs/{job}/tags", {"add": ["night"]})
        search = {"tag": ["night"] * 5_000, "status": ["queued"] * 15_000}
        assert await running.post("/api/matching/count", {"search": search, "act": "cancel"}) == counted(1)


async def test_the_same_act_asked_for_several_times_at_once_is_done_once_to_each_job(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    async with orchestrator(store) as running:
        ended = [(await running.submit())["job_id"] for _ in range(5)]
        for job in ended:
            await running.post(f"/api/jobs/{job}/cancel")
        body = {"search": {"status": ["cancelled"]}, "expected": 5}
        answers = await asyncio.gather(
            *(running.http.post("/api/matching/retry", json=body) for _ in range(3))
        )
        assert sum(answer.json()["done"] for answer in answers if answer.status_code == 200) == 5
        tries = Counter(job["retry_of"] for job in (await running.get("/api/jobs", limit=100))["jobs"])
        assert {job: tries[job] for job in ended} == dict.fromkeys(ended, 1)
    await store.close()


async def test_where_not_all_waiting_jobs_were_asked_for_their_reason_every_answer_says_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explainer, "MOST_GROUPS", 3)
    async with orchestrator() as running:
        for number in range(5):
            await running.submit(worker_labels={"k": f"v{number}"})
        search, expected = {"reason": "NO_WORKERS"}, (3, 2)
        for number, at_least in zip(expected, (True, False), strict=True):
            page = await running.get("/api/jobs", reason="NO_WORKERS", limit=1)
            assert (page["total"], page["at_least"]) == (number, at_least)
            count = await running.post("/api/matching/count", {"search": search, "act": "cancel"})
            assert count == counted(number, at_least=at_least)
            retries = await running.post("/api/matching/count", {"search": search, "act": "retry"})
            assert retries == counted(0), "a waiting job is never tried again, whatever its reason"
            acted = await running.post("/api/matching/cancel", {"search": search, "expected": number})
            assert (acted["done"], acted["next"], acted["at_least"]) == (number, None, at_least)
        assert await ids(running, status="queued") == []
        assert (await running.get("/api/jobs"))["at_least"] is False
