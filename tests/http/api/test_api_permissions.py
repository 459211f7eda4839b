"""Every row of the real table against every permission by itself: nothing is open that should not be.

Who may do what to whose job, and in which state, is in `tests/attacks/matrix`.
"""

import asyncio
import re
from pathlib import Path

from devtools.fuzz.in_process_server import Headers, InProcessServer
from simpletuner_fleet.core.people.permissions import PERMISSIONS
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Access, Route

OPEN = {
    *("/health/live", "/health/ready", "/metrics", "/api/login", "/api/start"),
    *("/api/approvals/link", "/api/workers/join"),
    *("/api/login/providers", "/api/login/providers/{provider}/logout"),
    *("/api/login/terminals", "/api/login/terminals/claim", "/api/login/ci/{issuer}"),
    "/api/login/terminals/exchange",
}
NEEDS_EVERYTHING = (
    "POST /api/admin/users/link",
    "PATCH /api/admin/sign-in/providers/{provider}",
    "DELETE /api/admin/sign-in/providers/{provider}",
)
"""They make an admin, or say who is one: who may manage users alone would become mightier than they are."""
OF_ONESELF = {
    "POST /api/login/terminals/answer": 422,
    "DELETE /api/me/sessions/{id}": 404,
    "PUT /api/me/views/{name}": 422,
    "DELETE /api/me/views/{name}": 404,
    "GET /api/teams/{id}": 404,
    "PATCH /api/teams/{id}": 404,
    "PUT /api/teams/{id}/members/{user}": 422,
    "DELETE /api/teams/{id}/members/{user}": 404,
    "GET /api/me/tokens": 409,
    "POST /api/me/tokens": 422,
    "DELETE /api/me/tokens/{id}": 409,
    "POST /api/approvals/{id}/approve": 404,
    "POST /api/approvals/{id}/reject": 404,
}
"""They admit every user, who then finds only what is their own: nothing of the name that is asked for here."""
WORKERS_ONLY = {row.path for row in ROUTES if row.path.startswith("/api/workers/")} - OPEN


def test_only_probes_and_the_way_in_are_public() -> None:
    assert {row.path for row in ROUTES if row.permission is Access.PUBLIC} == OPEN


def test_every_permission_of_the_table_exists_and_every_permission_is_used() -> None:
    asked = {row.permission for row in ROUTES if not isinstance(row.permission, Access)}
    assert asked <= set(PERMISSIONS)
    assert set(PERMISSIONS) - asked == {
        *("queue.submit.local", "queue.submit.command"),
        *("admin.see_all", "admin.notifications"),
    }


def test_workers_routes_take_worker_credentials_alone() -> None:
    for row in ROUTES:
        assert (row.permission in (Access.WORKER, Access.UPLOAD)) is (row.path in WORKERS_ONLY), row.path


class Door:
    """One server, and for each permission a token that has it alone and one that has all others."""

    def __init__(self, server: InProcessServer) -> None:
        self.server = server
        self.nothing: Headers = {}
        self.worker: Headers = {}
        self.just_one: dict[str, Headers] = {}
        self.all_but_one: dict[str, Headers] = {}

    async def open(self) -> "Door":
        self.nothing = await self.server.token("nothing")
        self.worker = (await self.server.worker("gpu-1")).headers
        for one in PERMISSIONS:
            self.just_one[one] = await self.server.token(f"only {one}", one)
            others = [other for other in PERMISSIONS if other != one]
            self.all_but_one[one] = await self.server.token(f"all but {one}", *others)
        return self

    async def ask(self, row: Route, headers: Headers) -> int:
        path = re.sub(r"\{\w+\}", "x_none", row.path)
        return (await self.server.ask(row.method, path, {} if row.body else None, headers)).status

    async def admits_exactly_those_it_names(self, row: Route) -> None:
        for_workers = row.path in WORKERS_ONLY
        named = f"{row.method} {row.path}"
        for_anybody = OF_ONESELF.get(named, 200)
        assert await self.ask(row, self.nothing) == (
            401 if for_workers else for_anybody if row.permission is Access.ANY_USER else 403
        ), named
        as_another = {"x-upload-token": self.worker["x-worker-token"]} if for_workers else self.worker
        assert await self.ask(row, as_another) == 401, named
        if isinstance(row.permission, Access):
            return
        assert await self.ask(row, self.all_but_one[row.permission]) == 403, named
        status = await self.ask(row, self.just_one[row.permission])
        assert status == 403 if named in NEEDS_EVERYTHING else status not in (401, 403), named


def test_a_row_admits_exactly_those_it_names(tmp_path: Path) -> None:
    async def story() -> None:
        server = await InProcessServer(tmp_path / "server", 1).open()
        try:
            door = await Door(server).open()
            for row in ROUTES:
                if row.path not in OPEN:
                    await door.admits_exactly_those_it_names(row)
        finally:
            await server.close()

    asyncio.run(story())
