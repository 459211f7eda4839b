"""Every row of the real table against every kind of caller: nothing is open that should not be."""

import re

import pytest

from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.permissions import PERMISSIONS
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Access, Route
from tests.http.api_kit import Agent, Running, orchestrator

OPEN = {"/health/live", "/health/ready", "/metrics", "/api/login", "/api/start"}
NEEDS_EVERYTHING = "/api/admin/users/link"
"""It makes an admin: who may manage users alone would become mightier than they are."""
OF_ONESELF = "/api/me/sessions/{id}"
"""It admits every user, who then finds only what is their own: nothing of the name that is asked for here."""
WORKERS_ONLY = {row.path for row in ROUTES if row.path.startswith("/api/workers/")}


def test_only_probes_and_the_way_in_are_public() -> None:
    assert {row.path for row in ROUTES if row.permission is Access.PUBLIC} == OPEN


def test_every_permission_of_the_table_exists_and_every_permission_is_used() -> None:
    asked = {row.permission for row in ROUTES if not isinstance(row.permission, Access)}
    assert asked <= set(PERMISSIONS)
    assert set(PERMISSIONS) - asked == {"queue.submit.local"}


def test_workers_routes_take_worker_credentials_alone() -> None:
    for row in ROUTES:
        assert (row.permission in (Access.WORKER, Access.UPLOAD)) is (row.path in WORKERS_ONLY), row.path


async def ask(running: Running, row: Route, headers: dict[str, str]) -> int:
    path = re.sub(r"\{\w+\}", "x_none", row.path)
    async with running.as_user(None) as http:
        if row.stream:
            async with http.stream(row.method, path, headers=headers) as answer:
                return answer.status_code
        answer = await http.request(row.method, path, headers=headers, json={} if row.body else None)
        return answer.status_code


@pytest.mark.parametrize(
    "row", [row for row in ROUTES if row.path not in OPEN], ids=lambda row: f"{row.method} {row.path}"
)
async def test_a_row_admits_exactly_those_it_names(row: Route) -> None:
    async with orchestrator() as running:
        agent = Agent(running, await running.create_worker())
        bearer = {"Authorization": f"Bearer {await running.token()}"}
        worker = {"X-Worker-Token": agent.token}
        stranger = {"Authorization": f"Bearer {tokens.make('st', b'z' * 32)}"}
        for_workers = row.path in WORKERS_ONLY
        assert await ask(running, row, {}) == 401
        assert await ask(running, row, stranger) == 401
        admitted_status = 404 if row.path == OF_ONESELF else 200
        assert await ask(running, row, bearer) == (
            401 if for_workers else admitted_status if row.permission is Access.ANY_USER else 403
        )
        assert (
            await ask(running, row, {**worker} if not for_workers else {"X-Upload-Token": agent.token}) == 401
        )
        if isinstance(row.permission, Access):
            return
        others = [one for one in PERMISSIONS if one != row.permission]
        wrong = {"Authorization": f"Bearer {await running.token(*others, name='all-but-one')}"}
        assert await ask(running, row, wrong) == 403
        right = {"Authorization": f"Bearer {await running.token(row.permission, name='just-one')}"}
        if row.path == NEEDS_EVERYTHING:
            assert await ask(running, row, right) == 403
        else:
            assert await ask(running, row, right) not in (401, 403)
