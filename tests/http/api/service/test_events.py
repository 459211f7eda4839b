"""Who may read a thing hears of it, and nobody else: every kind of event, beside the routes that show what it is about."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import simpletuner_fleet
from devtools.fuzz.in_process_server import CPU_JOB, Headers, InProcessServer, request_bytes
from devtools.fuzz.line import Line
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.http.api.service.events import NEEDED_FOR
from simpletuner_fleet.orchestrator.machines import pools
from tests.http.api_kit import until

SHOWN_BY = {
    "job": "/api/jobs/{}",
    "config": "/api/configs/{}",
    "dataset": "/api/data/{}",
    "pool": "/api/pools/{}",
    "machine": "/api/machines/{}",
    "worker": "/api/admin/workers/{}",
    "audit": "/api/audit?target_id={}",
}
POOL = {"provider": "process", "trainers": ["command"], "max_machines": 1, "max_daily_micros": 100_000_000}
ADMIN = Actor("admin", "admin")
Thing = tuple[str, str]
"""The kind of an event, and what it is about."""


class Watcher(Struct):
    headers: Headers
    line: Line

    def heard(self) -> list[dict[str, Any]]:
        return [
            json.loads(one) for one in re.findall(rb"^data: (.*)$", self.line.transport.written, re.MULTILINE)
        ]

    def heard_things(self) -> Counter[Thing]:
        return Counter((one["type"], one["id"]) for one in self.heard() if "id" in one)


class Watched:
    """A server in which the zebras have things of their own, with people and tokens of every kind who look on."""

    def __init__(self, server: InProcessServer) -> None:
        self.server = server
        self.published: list[Thing] = []
        self.watchers: dict[str, Watcher] = {}
        server.deps.hub.watch(self, lambda _, event, data: self.published.append((event, data["id"])))

    async def lets_watch(self, name: str, headers: Headers) -> None:
        line = Line(self.server.http_server)
        await line.send([request_bytes("GET", "/api/events", b"", headers)])
        self.watchers[name] = watcher = Watcher(headers, line)
        await until(watcher.heard)

    async def all_have_heard(self) -> None:
        """All hear of a job that is everybody's, and so have heard everything that came before it."""
        last = ("job", await self.server.submit(self.server.admin, "nobody", visibility="everybody"))
        for watcher in self.watchers.values():
            await until(lambda watcher=watcher: watcher.heard_things()[last])

    async def may_read(self, watcher: Watcher, thing: Thing) -> bool:
        path = SHOWN_BY[thing[0]].format(thing[1])
        answer = await self.server.ask("GET", path, None, watcher.headers)
        assert answer.status in (200, 403, 404), (path, answer)
        return answer.status == 200


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    policy = Policy(default_visibility=Visibility.TEAM)
    server = await InProcessServer(tmp_path / "server", 1, policy).open()
    watched = Watched(server)
    try:
        for name, role, team in (
            ("ann", "member", "zebras"),
            ("vic", "viewer", "lions"),
            ("fay", "member", ""),
        ):
            headers = await server.user(name, role)
            if team:
                await server.good("POST", "/api/teams", {"name": team})
                await server.good("PUT", f"/api/teams/{team}/members/{name}", {"role": "lead"})
            await watched.lets_watch(name, headers)
        await watched.lets_watch("admin", server.admin)
        for name, permissions in {
            "jobs": (),
            "machines": ("machines.read", "admin.machines"),
            "operator": ("admin.workers", "admin.audit", "configs.read", "data.read"),
        }.items():
            await watched.lets_watch(name, await server.token(name, "jobs.read", *permissions))
        yield watched
    finally:
        for watcher in watched.watchers.values():
            watcher.line.hang_up()
        await server.close()


async def happenings(watched: Watched) -> None:
    """At least one event of each kind, about things of the zebras, of everybody, and of nobody any more."""
    server, ann = watched.server, watched.watchers["ann"].headers
    worker = await server.worker("gpu")
    job_id = await server.submit(ann, "gpu")
    offer = await worker.offer_of(job_id)
    await worker.accept(offer)
    note = {"id": "n-1", "at": server.clock.now(), "kind": "seen", "text": "it is slow"}
    await worker.say(f"job/{job_id}/notes", {"epoch": offer["epoch"], "notes": [note]})
    await worker.report(offer, "completed", exit_code=0)
    await server.config("of-zebras", ann)
    await server.good("PUT", "/api/configs/of-all?visibility=everybody", CPU_JOB, ann)
    await server.dataset("stripes", ann)
    await server.good("PUT", "/api/pools/for-all", POOL)
    await server.good("PUT", "/api/pools/for-zebras", {**POOL, "teams": ["zebras"]})
    for pool in ("for-all", "for-zebras", "deleted"):
        await machine_ends(server, pool)
    stranger = {"x-worker-token": worker.headers["x-worker-token"]}
    refused = await server.ask("POST", "/api/workers/register", {"name": "gpu", "max_jobs": 0}, stranger)
    assert refused.status == 422


async def machine_ends(server: InProcessServer, pool: str) -> None:
    now = server.clock.now()
    machine = Machine(
        id=f"m_{pool}",
        pool=pool,
        name=f"machine-{pool}",
        state=MachineState.BOOTING,
        created_at=now,
        asked_at=now,
        provider_id=f"p_{pool}",
    )
    await server.fleet.act(lambda transaction: transaction.tx.put_machine(machine))
    await pools.end_machine(server.fleet, machine.id, ADMIN, now=True)


async def test_who_may_read_a_thing_is_exactly_who_hears_of_it(watched: Watched) -> None:
    await happenings(watched)
    await watched.all_have_heard()
    assert {kind for kind, _ in watched.published} == set(NEEDED_FOR), "each kind happens here"
    for name, watcher in watched.watchers.items():
        readable = {thing for thing in set(watched.published) if await watched.may_read(watcher, thing)}
        due = Counter(thing for thing in watched.published if thing in readable)
        assert watcher.heard_things() == due, name


async def test_whose_a_thing_is_goes_no_further_than_the_filter(watched: Watched) -> None:
    await happenings(watched)
    await watched.all_have_heard()
    heard = watched.watchers["admin"].heard()
    assert len([one for one in heard if one["type"] == "machine"]) == 3
    assert not [one for one in heard if {"belongs", "audience"} & one.keys()]


async def test_an_event_of_which_nobody_has_said_who_may_read_it_is_sent_to_nobody(watched: Watched) -> None:
    await watched.server.fleet.act(lambda transaction: transaction.publish("news", id="n_1"))
    await watched.all_have_heard()
    for watcher in watched.watchers.values():
        assert "news" not in {one["type"] for one in watcher.heard()}


async def test_a_machine_whose_pool_changes_hands_is_news_to_those_it_is_kept_for_then(
    watched: Watched,
) -> None:
    server = watched.server
    await server.good("PUT", "/api/pools/p", {**POOL, "teams": ["zebras"]})
    await server.good("PUT", "/api/pools/p", {**POOL, "teams": ["lions"]})
    await machine_ends(server, "p")
    await watched.all_have_heard()
    hear = {name for name, one in watched.watchers.items() if one.heard_things()["machine", "m_p"]}
    assert hear == {"vic", "admin", "machines"}


def test_every_kind_of_event_says_who_may_read_what_it_is_about() -> None:
    sources = Path(simpletuner_fleet.__file__).parent.rglob("*.py")
    kinds = {
        kind for path in sources for kind in re.findall(r'\.publish\(\s*"(\w+)"', path.read_text("utf-8"))
    }
    assert kinds == set(NEEDED_FOR) == set(SHOWN_BY)
