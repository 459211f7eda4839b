"""What nobody outside a team may learn of it: every look, the event stream and the metrics, searched for its names."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from devtools.fuzz.in_process_server import Headers, InProcessServer, request_bytes
from devtools.fuzz.line import Line
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.visibility import UNSCOPED, ScopedView
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Access
from simpletuner_fleet.ports import View
from simpletuner_fleet.web import routes as web_routes

TEAM, PERSON, RECIPE, FACES, TITLE = "zebra-team", "zebra-ann", "zebra-recipe", "zebra-faces", "zebra-run"
LOOKS = [row for row in (*ROUTES, *web_routes.ROUTES) if row.method == "GET"]
OF_WORKERS = ("jobs.read", "queue.read", "configs.read", "data.read", "admin.workers")


class Secrets(Struct):
    """A server in which the zebras run a job, have run another, and let one wait; fay is none of them."""

    server: InProcessServer
    ann: Headers
    strangers: dict[str, Headers]
    words: tuple[str, ...]
    jobs: tuple[str, ...]


@asynccontextmanager
async def a_server_with_secrets(folder: Path) -> AsyncIterator[Secrets]:
    server = await InProcessServer(folder / "server", 1, Policy(default_visibility=Visibility.TEAM)).open()
    try:
        await server.user(PERSON, "member")
        await server.user("fay", "member")
        await server.good("POST", "/api/teams", {"name": TEAM})
        await server.good("PUT", f"/api/teams/{TEAM}/members/{PERSON}", {"role": "lead"})
        ann = await server.log_in(PERSON)
        worker = await server.worker("gpu")
        await server.config(RECIPE, ann)
        dataset = await server.dataset(FACES, ann)
        jobs = [await server.submit(ann, "gpu", name=f"{TITLE}-{at}") for at in range(2)]
        offers = [await worker.offer_of(job) for job in jobs]
        for offer in offers:
            await worker.accept(offer)
        await worker.report(offers[0], "completed", exit_code=0)
        jobs.append(await server.submit(ann, "nobody", name=f"{TITLE}-2"))
        strangers = {
            "a member of no team": await server.log_in("fay"),
            "a token for workers": await server.token("workers", *OF_WORKERS),
            "nobody": {},
        }
        words = ("zebra", dataset.partition(":")[2] or dataset, *jobs)
        yield Secrets(server, ann, strangers, words, tuple(jobs))
    finally:
        await server.close()


def said(words: tuple[str, ...], body: bytes) -> list[str]:
    return [word for word in words if word.encode() in body]


def test_no_look_at_any_address_tells_of_another_team(tmp_path: Path) -> None:
    async def story() -> list[str]:
        leaks: list[str] = []
        async with a_server_with_secrets(tmp_path) as secrets:
            server, worker_id = secrets.server, secrets.server.workers["gpu"].id
            for row in LOOKS:
                if row.stream or row.permission in (Access.WORKER, Access.UPLOAD):
                    continue
                if "{" in row.path and "workers/{id}" not in row.path:
                    continue
                path = row.path.replace("{id}", worker_id)
                for who, headers in secrets.strangers.items():
                    answer = await server.ask("GET", path, None, headers)
                    assert answer.status < 500, (path, who, answer)
                    leaks += [f"{path} tells {who} of {word}" for word in said(secrets.words, answer.body)]
            for path in ("/api/jobs", "/jobs", "/api/configs", "/api/data", "/datasets"):
                assert said(secrets.words, (await server.ask("GET", path, None, secrets.ann)).body), path
        return leaks

    assert asyncio.run(story()) == []


def test_no_search_and_no_filter_finds_what_is_anothers(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_server_with_secrets(tmp_path) as secrets:
            server = secrets.server
            for query in ("q=zebra", f"owner={PERSON}", "status=running", f"config={RECIPE}"):
                for base in ("/api/jobs", "/jobs", "/api/queue"):
                    for headers in secrets.strangers.values():
                        body = (await server.ask("GET", f"{base}?{query}", None, headers)).body
                        assert said(secrets.jobs, body) == [], (base, query)

    asyncio.run(story())


def test_the_event_stream_tells_of_ones_own_alone_and_ends_with_the_membership(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_server_with_secrets(tmp_path) as secrets:
            server = secrets.server
            watched = {
                name: await _watch(server, headers)
                for name, headers in {**secrets.strangers, "ann": secrets.ann}.items()
                if headers
            }
            job = await server.submit(secrets.ann, "gpu", name=f"{TITLE}-3")
            worker = server.workers["gpu"]
            offer = await worker.offer_of(job)
            await worker.accept(offer)
            await worker.report(offer, "running", step=1)
            await server.config(f"{RECIPE}-2", secrets.ann)
            await server.dataset(f"{FACES}-2", secrets.ann)
            await server.settle()
            heard = {name: bytes(line.transport.written) for name, line in watched.items()}
            assert job.encode() in heard["ann"]
            assert f"{RECIPE}-2".encode() in heard["ann"]
            assert b"event: dataset" in heard["ann"]
            for name in ("a member of no team", "a token for workers"):
                assert said((*secrets.words, job), heard[name]) == [], name
                assert b"event: ready" in heard[name]
                assert b"event: config" not in heard[name]
                assert b"event: dataset" not in heard[name]
            assert b"belongs" not in heard["ann"], "whose it is goes no further than the filter"

            fay = secrets.strangers["a member of no team"]
            await server.good("PUT", f"/api/teams/{TEAM}/members/fay", {"role": "viewer"})
            again = await _watch(server, fay)
            await worker.report(offer, "completed", exit_code=0)
            await server.settle()
            assert job.encode() in bytes(again.transport.written), "a member from now on"
            await server.good("DELETE", f"/api/teams/{TEAM}/members/fay")
            at = len(again.transport.written)
            another = await server.submit(secrets.ann, "gpu", name=f"{TITLE}-4")
            await server.settle()
            assert another.encode() not in bytes(again.transport.written[at:]), "and no more"
            for line in watched.values():
                line.hang_up()

    asyncio.run(story())


def test_metrics_have_no_name_of_a_person_a_team_or_a_job(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_server_with_secrets(tmp_path) as secrets:
            answer = await secrets.server.ask("GET", "/metrics", None, secrets.server.admin)
            assert answer.status == 200
            assert b"simpletuner" in answer.body
            assert said(secrets.words, answer.body) == []

    asyncio.run(story())


async def _watch(server: InProcessServer, headers: Headers) -> Line:
    line = Line(server.http_server)
    await line.send([request_bytes("GET", "/api/events", b"", headers)])
    await server.settle()
    return line


def test_who_sees_what_is_said_for_everything_that_can_be_looked_up() -> None:
    looks = {name for base in View.__mro__ for name in vars(base) if not name.startswith("_")}
    decided = {name for name in vars(ScopedView) if not name.startswith("_")}
    assert looks == (looks & decided) | (looks & UNSCOPED)
    assert not decided & UNSCOPED
    assert looks >= UNSCOPED
