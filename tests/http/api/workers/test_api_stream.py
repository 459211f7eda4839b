"""A worker's stream: sent at once, sent again, superseded, cut, and never confused with its successor."""

import asyncio

import pytest

from simpletuner_fleet.core.errors import InvalidToken
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.orchestrator.workers import attendance
from simpletuner_fleet.orchestrator.workers.registration import register
from simpletuner_fleet.protocol.messages import Goodbye, Heartbeat, Register
from simpletuner_fleet.queries import free_now
from tests.http.api_kit import Agent, Running, orchestrator, read_events, until
from tests.stop_watch import StopWatch

QUICK = Policy(ping_interval_s=0.1, offer_resend_s=0.2)


async def test_events_have_rising_ids_and_names_that_agree_with_their_type() -> None:
    async with orchestrator(policy=QUICK) as running:
        agent = await running.worker()
        await running.submit()
        await agent.offer()
        await agent.events.next("ping")
        await agent.events.next("ping")
        numbers = [int(number) for number in agent.events.ids]
        assert numbers == sorted(set(numbers))


async def test_an_offer_nobody_accepts_is_sent_again_under_the_same_epoch() -> None:
    async with orchestrator(policy=QUICK) as running:
        agent = await running.worker()
        await running.submit()
        first = await agent.offer()
        again = await agent.offer()
        assert (again["job_id"], again["epoch"]) == (first["job_id"], first["epoch"])
        assert again["upload_token"] == first["upload_token"]
        await agent.accept(again)
        count = len(agent.events.of_kind("job_submit"))
        await asyncio.sleep(0.5)
        assert len(agent.events.of_kind("job_submit")) == count


async def test_a_new_connection_is_told_again_what_is_due() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit()
        first = await agent.offer()
        await agent.close_stream()
        await agent.open_stream()
        assert (await agent.offer())["epoch"] == first["epoch"]


async def test_a_cancel_names_the_very_attempt_and_is_sent_once_at_first() -> None:
    async with orchestrator(policy=QUICK) as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        answer = await running.post(f"/api/jobs/{job['job_id']}/cancel")
        assert answer["status"] == "cancelling"
        cancel = await agent.events.next("job_cancel")
        assert (cancel["job_id"], cancel["epoch"]) == (job["job_id"], offer["epoch"])
        assert cancel["grace_s"] == running.fleet.policy.cancel_grace_s
        await asyncio.sleep(0.5)
        assert len(agent.events.of_kind("job_cancel")) == 1
        await agent.report(offer, "cancelled")
        assert (await running.job(job["job_id"]))["status"] == "cancelled"


async def test_a_drain_is_told_once_with_its_note_and_again_after_a_resume() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.post(f"/api/admin/workers/{agent.id}/drain", {"note": "new driver"})
        assert (await agent.events.next("drain"))["note"] == "new driver"
        await running.post(f"/api/admin/workers/{agent.id}/resume")
        await running.submit()
        await agent.offer()
        assert len(agent.events.of_kind("drain")) == 1
        await running.post(f"/api/admin/workers/{agent.id}/drain")
        await agent.events.next("drain")


async def test_a_draining_ephemeral_worker_is_sent_home_after_its_job() -> None:
    async with orchestrator() as running:
        created = await running.create_worker("spot", worker_type="ephemeral")
        agent = Agent(running, created)
        await agent.register(persistent=False)
        await agent.open_stream()
        await running.submit()
        offer = await agent.take()
        await running.post(f"/api/admin/workers/{agent.id}/drain")
        await agent.events.next("drain")
        assert agent.events.of_kind("shutdown") == []
        await agent.report(offer, "completed")
        assert (await agent.events.next("shutdown"))["reason"] == "drained"


async def test_a_rotated_token_cuts_the_stream_within_a_second_and_is_refused_at_once() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        await agent.heartbeat(offer)
        with StopWatch() as watch:
            rotated = await running.post(f"/api/admin/workers/{agent.id}/token")
            refused = await agent.heartbeat(offer, expect=401)
            assert refused["code"] == "invalid_token"
            await agent.events.next("token_rotated", within_s=30)
            await asyncio.wait_for(agent.events.ended.wait(), 30)
            assert watch.elapsed_s < 1
        await agent.report(offer, "running", expect=401)
        assert (await running.job(job["job_id"]))["status"] == "running"
        agent.use_token(rotated["token"])
        held = [{"job_id": job["job_id"], "epoch": offer["epoch"]}]
        assert [one["job_id"] for one in (await agent.register(attempts=held))["keep"]] == [job["job_id"]]
        await agent.open_stream()
        await agent.report(offer, "completed")
        assert (await running.job(job["job_id"]))["attempt"] == 1


async def test_a_reconnect_of_the_same_agent_just_ends_the_older_stream() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        older = agent.reading
        assert older
        await agent.open_stream()
        await asyncio.wait_for(older.events.ended.wait(), 2)
        assert older.events.of_kind("shutdown") == []
        await running.submit()
        await agent.offer()


async def test_another_agent_with_the_same_token_supersedes_the_first_which_is_told_so() -> None:
    async with orchestrator() as running:
        first = await running.worker()
        second = Agent(running, {"worker_id": first.id, "token": first.token}, incarnation="i-2")
        await second.register(home="elsewhere")
        await second.open_stream()
        assert (await first.events.next("shutdown"))["reason"] == "superseded"
        await asyncio.wait_for(first.events.ended.wait(), 2)
        await running.submit()
        await second.offer()
        refused = await first.heartbeat(expect=409)
        assert refused["code"] == "superseded"
        assert (await first.register(expect=409))["code"] == "superseded"
        with pytest.raises(AssertionError, match="409"):
            await first.open_stream()
        assert not second.events.ended.is_set()


async def test_a_copy_that_leaves_gives_nothing_back_that_the_first_may_still_run() -> None:
    async with orchestrator() as running:
        first = await running.worker()
        await first.register(home="here")
        await first.open_stream()
        job = (await running.submit())["job_id"]
        offer = await first.take()
        await first.report(offer, "running")
        copy = Agent(running, {"worker_id": first.id, "token": first.token}, incarnation="i-2")
        await copy.register(home="elsewhere")
        await copy.call("disconnect", {"incarnation": "i-2"})
        assert (await running.get(f"/api/jobs/{job}"))["status"] == "running"


async def test_the_older_streams_clean_up_leaves_its_successor_alone() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        older = agent.reading
        assert older
        await agent.open_stream()
        await asyncio.wait_for(older.events.ended.wait(), 2)
        await older.close()
        await asyncio.sleep(0.1)
        assert running.deps.hub.streaming(agent.id)
        job = await running.submit()
        assert (await agent.offer())["job_id"] == job["job_id"]


async def test_the_end_of_a_stream_that_is_noted_after_another_was_opened_takes_nothing_away() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        assert not await attendance.stream_closed(running.fleet, agent.id, running.deps.hub.streaming)
        assert (await running.submit())["status"] == "dispatched"
        await agent.close_stream()
        await until(lambda: not running.deps.hub.streaming(agent.id))
        assert await attendance.stream_closed(running.fleet, agent.id, running.deps.hub.streaming)


async def test_a_worker_whose_stream_is_closed_is_offered_nothing_until_it_hears_again() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await agent.close_stream()
        await until(lambda: agent.id not in running.fleet._index.reachable)
        job = await running.submit()
        assert job["status"] == "queued"
        await agent.open_stream()
        assert (await agent.offer())["job_id"] == job["job_id"]


async def test_a_stream_for_another_worker_is_refused() -> None:
    async with orchestrator() as running:
        agent = await running.worker("one")
        other = await running.worker("two")
        with pytest.raises(AssertionError, match="403"):
            await read_events(agent.http, f"/api/workers/stream?worker_id={other.id}")
        assert running.deps.hub.streaming(other.id)
        assert not other.events.ended.is_set()


async def test_a_deleted_workers_token_opens_nothing() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await agent.call("disconnect", {})
        deleted = await running.http.delete(f"/api/admin/workers/{agent.id}")
        assert deleted.status_code == 200
        await agent.heartbeat(expect=401)
        with pytest.raises(AssertionError, match="401"):
            await agent.open_stream()


async def test_a_config_as_large_as_any_reaches_the_worker() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit(
            config={
                "trainer": "command",
                "settings": {"command": ["x" * 3_900_000]},
                "resources": {"gpus": 0},
            }
        )
        offer = await agent.offer()
        assert len(offer["config"]["command"][0]) == 3_900_000


async def test_a_server_that_stops_ends_streams_without_forgetting_anyone() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        events = agent.events
    await asyncio.wait_for(events.ended.wait(), 2)


async def test_two_agents_with_one_token_do_not_take_it_from_each_other_for_ever() -> None:
    """Both are started again and again by whoever restarts them, in folders of their own."""
    async with orchestrator() as running:
        first = await running.worker()
        await first.register(home="here")
        await first.open_stream()
        second = Agent(running, {"worker_id": first.id, "token": first.token}, incarnation="i-2")
        await second.register(home="elsewhere")
        await second.open_stream()
        again = Agent(running, {"worker_id": first.id, "token": first.token}, incarnation="i-3")
        assert (await again.register(home="yet-another", expect=409))["code"] == "superseded"
        assert not second.events.ended.is_set()
        await running.submit()
        await second.offer()
        assert second.reading
        await second.reading.close()
        await until_gone(running, first.id)
        await again.register(home="yet-another")


async def until_gone(running: Running, worker_id: str) -> None:
    for _ in range(200):
        if (await running.get(f"/api/admin/workers/{worker_id}"))["status"] != "busy":
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it is still there")


async def test_a_worker_that_gives_an_offer_back_is_named_until_its_next_heartbeat_brings_the_next_one() -> (
    None
):
    async with orchestrator() as running:
        agent = await running.worker("gpu-1")
        job = await running.submit()
        await agent.report(await agent.offer(), "released", error="not now")
        why = await running.get(f"/api/jobs/{job['job_id']}/explain")
        assert (why["code"], why["class"], why["params"]["worker"]) == (
            "ALL_MATCHING_NOT_LISTENING",
            "wait",
            "gpu-1",
        )
        assert why["workers"][0]["fails"] == ["not_listening"]
        given_back = len(agent.events.of_kind("job_submit"))
        await agent.heartbeat()
        await agent.take()
        assert len(agent.events.of_kind("job_submit")) > given_back
        assert (await running.job(job["job_id"]))["status"] == "running"


async def test_a_rotated_worker_is_reconnecting_from_that_moment_and_idle_again_with_its_new_token() -> None:
    async with orchestrator() as running:
        agent = await running.worker("gpu-1")
        assert (await free_now.look(running.fleet)).room
        rotated = await running.post(f"/api/admin/workers/{agent.id}/token")
        assert not (await free_now.look(running.fleet)).room
        seen = await running.get(f"/api/admin/workers/{agent.id}")
        assert (seen["connection"], seen["status"]) == ("reconnecting", "connecting")
        job = await running.submit()
        why = await running.get(f"/api/jobs/{job['job_id']}/explain")
        assert (why["code"], why["params"]["worker"]) == ("ALL_MATCHING_RECONNECTING", "gpu-1")
        agent.use_token(rotated["token"])
        await agent.register()
        await agent.open_stream()
        await agent.take()
        assert (await running.job(job["job_id"]))["status"] == "running"


async def test_what_was_let_in_with_the_old_token_and_is_read_after_the_new_one_was_made_changes_nothing() -> (
    None
):
    async with orchestrator() as running:
        agent = await running.worker("gpu-1")
        old = tokens.hashed(agent.token)
        await running.post(f"/api/admin/workers/{agent.id}/token")
        fleet, beat = running.fleet, Heartbeat(incarnation=agent.incarnation, attempts=[])
        with pytest.raises(InvalidToken):
            await attendance.heartbeat(fleet, agent.id, beat, base_url="http://x", token_hash=old)
        with pytest.raises(InvalidToken):
            await attendance.stream_opened(fleet, agent.id, "", agent.incarnation, token_hash=old)
        with pytest.raises(InvalidToken):
            await attendance.goodbye(fleet, agent.id, Goodbye(), ip="", token_hash=old)
        newcomer = Register(name="gpu-1", gpus=[], incarnation="i-late")
        with pytest.raises(InvalidToken):
            await register(fleet, agent.id, newcomer, ip="", base_url="http://x", token_hash=old)
        seen = await running.get(f"/api/admin/workers/{agent.id}")
        assert (seen["connection"], seen["status"]) == ("reconnecting", "connecting")
