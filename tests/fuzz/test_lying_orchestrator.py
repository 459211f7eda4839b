"""A worker in bad company: an orchestrator that talks nonsense ends neither the agent nor its trainer."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from devtools.fuzz.agent.lying_server import answer
from devtools.fuzz.agent.stage import event, offer, stage, until

NONSENSE = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"\xff\xfe",
    b'{"job_id":"\xff"}',
    b'{"job_id":1,"epoch":"x"}',
    b'{"job_id":"j_1","epoch":1e999}',
    b'{"job_id":"j_1"',
    b"[" * 200_000,
    b'{"job_id":' * 100_000,
    b'{"type":"job_cancel"}',
    b'{"reason":5}',
    b"<html>",
)
KINDS = (
    b"job_submit",
    b"job_cancel",
    b"drain",
    b"shutdown",
    b"token_rotated",
    b"ping",
    b"\xff",
    b"",
    b"superseded",
)
ODD_ANSWERS = (
    b"",
    b"\x00\x01\x02",
    b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
    answer(200, b"<html>proxy login</html>"),
    answer(200, b"\xff\xfe"),
    answer(200, b"[" * 100_000),
    answer(200, b'{"status":5}'),
    answer(200, b"not gzip", b"Content-Encoding: gzip"),
    answer(302, b"", b"Location: http://127.0.0.1:1/"),
    answer(404, b"{}"),
    answer(409, b'{"code":"whatever"}'),
    answer(422, b'{"code":[],"detail":{}}'),
    answer(429, b"", b"Retry-After: -5"),
    answer(500, b"\xff"),
    answer(503, b'{"code":"store_unavailable"}'),
    *(
        answer(
            200,
            json.dumps(
                {"status": "idle", "heartbeat_interval_s": every, "heartbeat_timeout_s": limit}
            ).encode(),
        )
        for every, limit in ((0, 0), (-1, -1), (1e308, 1e308), (5, 1), (0.1, 0), (0, 20))
    ),
)


async def test_nonsense_on_the_stream_stops_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as on_stage:
        chance = random.Random(7)
        for _ in range(300):
            data = chance.choice(NONSENSE) if chance.random() < 0.8 else chance.randbytes(40)
            kind = chance.choice(
                [one for one in KINDS if one not in (b"drain", b"shutdown") or data != b"{}"]
            )
            await on_stage.server.say(event(kind, data))
        await on_stage.goes_on()
        await on_stage.ends_well()


async def test_an_endless_event_costs_the_connection_and_not_the_job(tmp_path: Path) -> None:
    async with stage(tmp_path) as on_stage:
        before = on_stage.server.registrations
        for _ in range(100):
            await on_stage.server.say(b"data: " + b"x" * (1 << 20))
            if on_stage.server.registrations > before:
                break
        await until(lambda: on_stage.server.registrations > before, "the agent comes back")
        await on_stage.goes_on()
        await on_stage.ends_well()


async def test_odd_answers_to_heartbeats_and_registrations_stop_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as on_stage:
        for odd in ODD_ANSWERS:
            on_stage.server.lies.append(odd)
            heard = on_stage.server.heartbeats
            await until(
                lambda heard=heard: on_stage.server.heartbeats > heard + 1, f"goes on after {odd[:60]!r}"
            )
        await on_stage.goes_on()
        await on_stage.ends_well()


async def test_a_cancelled_agent_leaves_no_loop_behind(tmp_path: Path) -> None:
    async with stage(tmp_path) as on_stage:
        await on_stage.goes_on()
        on_stage.agent.cancel()
        await asyncio.gather(on_stage.agent, return_exceptions=True)
        left = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
        assert not left & {"stream_loop", "heartbeat_loop", "_deliver_once_known", "Agent._run"}


def escaped_from(folder: Path) -> list[Path]:
    return list(folder.rglob("*escaped*")) + [path for path in (Path("/escaped"),) if path.exists()]


async def test_offers_that_make_no_sense_fail_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    senseless: tuple[dict[str, Any], ...] = (
        {"trainer": "no-such-trainer"},
        {"trainer": "../../bin/sh"},
        {"config": {}},
        {"config": {"command": "rm -rf /"}},
        {"config": {"command": []}},
        {"config": {"command": [1, 2]}},
        {"config": {"command": ["/no/such/program"]}},
        {"config": {"command": ["a\0b"]}},
        {"config": {"command": ["true"], "cwd": "/no/such/folder"}},
        {"attempt_id": "../../../escaped"},
        {"attempt_id": str(precious)},
        {"attempt_id": ""},
        {"files": {"../../escaped": "x"}},
        {"files": {"/escaped": "x"}},
        {"env": {"BAD=NAME": "x"}},
        {"env": {"A": "\0"}},
        {"gpus": ["\0"], "gpu_indices": [-1]},
        {"time_limit_s": -1.0, "config": {"command": ["sleep", "60"]}},
        {"num_processes": -5, "trainer": "simpletuner"},
        {"resume": {"x": [1]}, "config": {"command": ["false"]}},
    )
    async with stage(tmp_path) as on_stage:
        for number, changes in enumerate(senseless):
            marks = {"job_id": f"j_{number}", "attempt_id": f"a_{number}", "epoch": 100 + number, **changes}
            await on_stage.server.say(offer(**marks))
        for number in range(len(senseless)):
            await until(
                lambda number=number: on_stage.outcome(f"j_{number}") in ("failed", "completed"),
                f"an end of {senseless[number]}",
            )
        assert not escaped_from(tmp_path)
        assert (precious / "kept").exists()
        await on_stage.goes_on()
        await on_stage.ends_well()
