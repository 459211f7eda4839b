"""What the pages of workers say, without a browser: who joined from where, who failed to and why, how full GPUs were."""

import asyncio
import json
import shlex
from datetime import datetime
from typing import Any

import pytest

from simpletuner_fleet.core.workers.worker import Connection, Gpu, Worker
from simpletuner_fleet.engine.memory.gpu_history import GpuPoint
from simpletuner_fleet.http.api.admin.connection_commands import connection_commands
from simpletuner_fleet.web import routes
from simpletuner_fleet.web.pages.create_worker import demo_body
from simpletuner_fleet.web.parts.charts.gpus import HEIGHT, gpu_chart
from tests.http.api_kit import Agent, Running, orchestrator

HOSTILE = "<img src=x onerror=alert(1)>"


async def page_of(running: Running, path: str) -> str:
    answer = await running.http.get(path, headers={"accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return answer.text


async def refused(running: Running, token: str | None) -> None:
    headers = {"X-Worker-Token": token} if token else {}
    async with running.as_user(None) as stranger:
        answer = await stranger.post("/api/workers/register", json={}, headers=headers)
    assert answer.status_code == 401


async def last_refusal(running: Running) -> dict[str, Any]:
    page = await running.get("/api/audit", event_type="worker.registration_failed", limit=1)
    return dict(page["entries"][0])


async def test_each_kind_of_refusal_is_told_apart() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        worker = await running.create_worker("gpu-1")
        stranger = await running.create_worker("other")
        await running.http.delete(f"/api/admin/workers/{stranger['worker_id']}")
        await running.post(f"/api/admin/workers/{worker['worker_id']}/token")
        for token, code, target in (
            (worker["token"], "token_rotated", worker["worker_id"]),
            (stranger["token"], "invalid_token", ""),
            (worker["token"][:-1], "token_misshapen", ""),
            (None, "unauthenticated", ""),
        ):
            await refused(running, token)
            entry = await last_refusal(running)
            assert (entry["details"]["code"], entry["target_id"]) == (code, target)
            assert (token or "wt_") not in json.dumps(entry)
        text = await page_of(running, f"/admin/workers/create?worker={worker['worker_id']}")
        for sentence in (
            "127.0.0.1 used a token that has been rotated.",
            "127.0.0.1 used a token that belongs to no worker.",
            "127.0.0.1 used a token that was truncated or mistyped.",
            "127.0.0.1 sent no token.",
        ):
            assert sentence in text


async def test_a_second_machine_with_the_same_token_is_named() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        created = await running.create_worker("gpu-1")
        first, second = Agent(running, created, "i-1"), Agent(running, created, "i-2")
        await first.register(home="h-1")
        await second.register(home="h-2")
        await first.register(expect=409, home="h-1")
        text = await page_of(running, f"/admin/workers/create?worker={created['worker_id']}")
        assert "127.0.0.1 used this worker&#39;s token, but another machine is already using it." in text


async def test_a_look_at_the_certificate_that_nothing_follows_is_shown_after_a_while() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        created = await running.create_worker("gpu-1")
        path = f"/admin/workers/create?worker={created['worker_id']}"
        running.clock.at += 10
        running.deps.certificate_looks.note("10.0.0.7", running.clock.at)
        assert "10.0.0.7" not in await page_of(running, path), "it may still be on its way"
        running.clock.at += 10
        text = await page_of(running, path)
        assert "10.0.0.7 rejected this server&#39;s certificate." in text


async def test_who_registered_after_the_look_is_no_trouble() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        agent = Agent(running, await running.create_worker("gpu-1"))
        running.deps.certificate_looks.note("127.0.0.1", running.clock.at)
        running.clock.at += 1
        await agent.register(gpus=2, tls="pinned", labels={"hostname": "box"})
        running.clock.at += 60
        text = await page_of(running, f"/admin/workers/create?worker={agent.id}")
        assert "rejected" not in text
        assert "Connected from 127.0.0.1: TLS, pinned" in text
        assert "2 GPUs found: NVIDIA A100" in text


async def test_a_machine_says_its_trainers_release_and_what_that_lacks() -> None:
    lacking = ("cannot be asked for a checkpoint", "does not mark finished checkpoints", "exits with code 0")
    seen: dict[str, tuple[str, ...]] = {}
    async with orchestrator(pages=routes.ROUTES) as running:
        for version in ("3.1.6", "4.2.0", "4.10.1", ""):
            agent = Agent(running, await running.create_worker(f"gpu-{version}"))
            await agent.register(labels={"trainer": version} if version else {})
            text = await page_of(running, f"/admin/workers/{agent.id}")
            assert (f"<dt>SimpleTuner</dt><dd>{version}" in text) is bool(version), version
            seen[version] = tuple(words for words in lacking if words in text)
    assert seen == {"3.1.6": lacking, "4.2.0": lacking[1:2], "4.10.1": (), "": ()}


async def test_a_watcher_hears_of_a_refusal_at_once() -> None:
    async with orchestrator() as running:
        events: list[tuple[str, dict[str, Any]]] = []
        running.deps.hub.watch("the test", lambda id, event, data: events.append((event, data)))
        worker = await running.create_worker("gpu-1")
        await running.post(f"/api/admin/workers/{worker['worker_id']}/token")
        await refused(running, worker["token"])
        await asyncio.sleep(0)
        news = [data for event, data in events if event == "audit"]
        assert news == [{"id": worker["worker_id"], "event_type": "worker.registration_failed"}]


async def test_what_a_worker_says_of_its_connection_is_kept_and_nonsense_is_not() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        agent = Agent(running, await running.create_worker("gpu-1"))
        for said, kept in (("unverified", "unverified"), (HOSTILE, "")):
            await agent.register(tls=said)
            worker = await running.fleet.read(lambda view: view.worker(agent.id))
            assert worker is not None
            assert (worker.tls, worker.address) == (kept, "127.0.0.1")
        assert HOSTILE not in await page_of(running, f"/admin/workers/{agent.id}")


async def test_pulses_tell_heartbeats_and_memory() -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=1)
        await agent.heartbeat(gpus=[{"uuid": f"GPU-{agent.id}-0", "memory_used_gb": 12.5}])
        pulse = (await running.get("/api/admin/pulses"))["workers"][agent.id]
        assert pulse["last_heartbeat"]
        assert pulse["memory_used_gb"] == {f"GPU-{agent.id}-0": 12.5}
        assert pulse["read_at"] == {f"GPU-{agent.id}-0": pulse["last_heartbeat"]}
        other = await running.worker("gpu-2")
        assert set((await running.get("/api/admin/pulses"))["workers"]) == {agent.id, other.id}
        named = await running.get("/api/admin/pulses", ids=f"{agent.id},w_gone")
        assert set(named["workers"]) == {agent.id}


async def test_readings_that_are_old_say_since_when_they_are_so() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        agent = await running.worker(gpus=1)
        reading = {"uuid": f"GPU-{agent.id}-0", "memory_used_gb": 12.5}
        pages = ("/admin/workers", f"/admin/workers/{agent.id}")
        sentences = ("GB in use when it was last read", "last read:")
        await agent.heartbeat(gpus=[reading])
        for path, sentence in zip(pages, sentences, strict=True):
            assert sentence not in await page_of(running, path)
        running.clock.at += 300.0
        await agent.heartbeat(gpus=[{**reading, "age_s": 200.0}])
        for path, sentence in zip(pages, sentences, strict=True):
            assert sentence in await page_of(running, path)
        pulse = (await running.get("/api/admin/pulses"))["workers"][agent.id]
        heard, read = map(datetime.fromisoformat, (pulse["last_heartbeat"], *pulse["read_at"].values()))
        assert (heard - read).total_seconds() == pytest.approx(200.0, abs=5.0)


def test_every_command_can_be_pasted_and_keeps_the_token_off_other_peoples_screens() -> None:
    worker = machine(name="gpu-1")
    commands = connection_commands(worker, "wt_secret", "https://10.0.0.5:8001", "sha256:ab")
    for text in (commands.uv, commands.pip, commands.systemd, commands.container):
        words = shlex.split(text.replace("\\\n", " "))
        assert "https://10.0.0.5:8001" in text
        assert "sha256:ab" in text
        assert words.count("wt_secret") + words.count("SIMPLETUNER_WORKER_TOKEN=wt_secret") == 1
    assert shlex.split(commands.systemd.replace("\\\n", " "))[:2] == ["printf", "%s\\n"], (
        "a word of the shell"
    )
    assert "-e SIMPLETUNER_WORKER_TOKEN \\\n" in commands.container, "taken from the environment"
    assert "SIMPLETUNER_WORKER_TOKEN=wt_secret" in commands.environment.splitlines()


def machine(**facts: Any) -> Worker:
    known = {"id": "w_1", "token_hash": "x", "token_created_at": 0.0, "created_at": 0.0}
    return Worker(**{**known, "connection": Connection.CONNECTED, "trainers": ("demo",), **facts})


def test_the_demo_runs_on_the_machine_itself_or_is_not_offered() -> None:
    gpu = Gpu(index=0, uuid="GPU-1")
    able = machine(name="a", reported_labels={"hostname": "box-1"}, gpus=(gpu,))
    body = json.loads(demo_body(able, "idle"))
    assert (body["worker_labels"], body["gpus"]) == ({"hostname": "box-1"}, 1)
    assert demo_body(able, "offline") == ""
    assert demo_body(machine(name="a", reported_labels={"hostname": "box-*"}), "idle") == ""
    assert demo_body(machine(name="a"), "idle") == ""


def point(at: float, busy: float | None, used: float | None = None) -> GpuPoint:
    return GpuPoint(at=at, utilization=busy, memory_used_gb=used, temperature_c=None, power_w=None)


def test_a_silence_is_a_gap_in_the_course_and_nothing_unknown_is_drawn() -> None:
    heard = [point(0, 50.0), point(30, 100.0), point(5000, 0.0), point(5030, None)]
    drawn = gpu_chart(heard, 80.0, 0.0, 6000.0)
    assert drawn.busy.count("M") == 2
    assert f"L{0:.1f} {HEIGHT / 2:.1f}" in drawn.busy
    assert drawn.full == "", "its memory was never told"
    assert gpu_chart([], 80.0, 0.0, 1.0).busy == ""
