"""Every route of the real table, for everybody, with jobs of their own and of others in every state, against `rules.py`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.fuzz.in_process_server import Headers, InProcessServer
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Access, Route
from tests.attacks.matrix.rules import CALLERS, ENDPOINTS, GUARDS, NOBODYS, OWNED, RULES, expected
from tests.attacks.matrix.scene import Scene, a_scene

SPENDS_THE_SESSION = "POST /api/logout"
NEEDS_EVERYTHING = "POST /api/admin/users/link"
"""It makes an admin: the permission alone does not suffice."""


def name_of(row: Route) -> str:
    return f"{row.method} {row.path}"


def rows(names: object) -> list[Route]:
    assert isinstance(names, dict | tuple)
    return [row for row in ROUTES if name_of(row) in names]


def test_every_route_has_an_expectation_and_every_expectation_a_route() -> None:
    real = {name_of(row): row.permission for row in ROUTES}
    guards = {route: asked for asked, routes in GUARDS.items() for route in routes}
    assert {
        route: str(asked.value if isinstance(asked, Access) else asked) for route, asked in real.items()
    } == guards
    named = {route for route in real if "{" in route}
    assert named == {*RULES, *OWNED, *NOBODYS, *ENDPOINTS}
    assert len(named) == len(RULES) + len(OWNED) + len(NOBODYS) + len(ENDPOINTS)


def disagreements(
    route: str, caller: str, state: JobState | None, status: int, changed: bool
) -> Iterator[str]:
    cell = f"{route} by {caller}, job {state}: {status}"
    wanted = expected(route, caller, state)
    if wanted is None:
        if status in (401, 403) and not (route == NEEDS_EVERYTHING and status == 403):
            yield f"{cell}, though they may"
    elif status != wanted:
        yield f"{cell}, and not {wanted}"
    if changed and (status >= 400 or route.startswith("GET ")):
        yield f"{cell}, and the job is another than before"


@pytest.mark.timeout(400)
def test_every_route_about_a_job_for_everybody_in_every_state(tmp_path: Path) -> None:
    async def story() -> tuple[int, list[str]]:
        wrong: list[str] = []
        cells = 0
        async with a_scene(tmp_path) as scene:
            for row in rows(RULES):
                for caller in CALLERS:
                    for state, (status, changed) in (await scene.call_for_each_state(row, caller)).items():
                        wrong += disagreements(name_of(row), caller, state, status, changed)
                        cells += 1
        return cells, wrong

    cells, wrong = asyncio.run(story())
    assert wrong == []
    assert cells == len(RULES) * len(CALLERS) * len(JobState)


def test_every_other_route_for_everybody(tmp_path: Path) -> None:
    async def story() -> list[str]:
        wrong: list[str] = []
        async with a_scene(tmp_path) as scene:
            for row in ROUTES:
                if name_of(row) in (*RULES, *OWNED):
                    continue
                for caller in CALLERS:
                    status = await scene.ask(row, caller)
                    wrong += disagreements(name_of(row), caller, None, status, changed=False)
                    if name_of(row) == SPENDS_THE_SESSION and status < 300:
                        await log_in_again(scene, caller)
        return wrong

    assert asyncio.run(story()) == []


async def log_in_again(scene: Scene, caller: str) -> None:
    person = caller.partition(",")[0]
    if "cookie" in scene.callers[caller]:
        scene.callers[caller] = await scene.server.log_in(person)


async def things(server: InProcessServer, owner: Headers) -> dict[str, str]:
    """Something of the owner's for each route that changes such a thing."""
    await server.config("hers", owner)
    sessions = (await server.good("GET", "/api/me/sessions", None, owner))["sessions"]
    hers = str(sessions[-1]["id"])
    dataset = await server.dataset("hers", owner)
    return dict(zip(OWNED, ("hers", "hers", dataset, hers), strict=True))


@pytest.mark.parametrize("row", rows(OWNED), ids=name_of)
def test_what_belongs_to_somebody_is_changed_by_them_and_from_above_alone(row: Route, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_scene(tmp_path) as scene:
            server, ann = scene.server, scene.callers["ann, its owner"]
            route = name_of(row)
            target = row.path.split("{")[0] + (await things(server, ann))[route]
            body = {"settings": {"command": ["true"]}, "trainer": "command"} if row.body is not None else None
            for caller in CALLERS:
                if caller in ("ann, its owner", "an admin", "its own attempt"):
                    continue
                answer = await server.ask(row.method, target, body, scene.callers[caller])
                wanted = expected(route, caller, None) or OWNED[route]
                assert answer.status == wanted, (route, caller, answer)
                assert answer.status >= 400
            assert (await server.ask(row.method, target, body, ann)).status < 300

    asyncio.run(story())
