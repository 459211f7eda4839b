"""Roles of one's own over real routes: made, held, changed under open sessions, never more than their maker has."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.postgres import PostgresStore

ROLES = "/api/admin/roles"
PASSWORD = "plum kettle 7 fog"


async def asked(
    server: InProcessServer, method: str, path: str, body: Any, who: dict[str, str]
) -> tuple[int, str]:
    answer = await server.ask(method, path, body, who)
    return answer.status, str(json.loads(answer.body or b"{}").get("code", ""))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_role_is_made_held_changed_and_deleted(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store: Store | None = (
        PostgresStore(request.getfixturevalue("ready_database")) if kind == "postgres" else None
    )
    server = await InProcessServer(tmp_path / "server", 1, Policy(require_approval=True), store).open()
    try:
        ann = await server.user("ann", "member")
        body: dict[str, Any] = {
            "permissions": ["jobs.read", "queue.read", "queue.approve", "admin.see_all"],
            "all_jobs": True,
        }
        await server.good("PUT", f"{ROLES}/approver", body)
        pat = await server.user("pat", "approver")
        me = await server.good("GET", "/api/me", None, pat)
        assert (me["role"], set(me["permissions"])) == ("approver", set(body["permissions"]))

        config = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}
        submit = {"config": config, "target": "worker"}
        assert await asked(server, "POST", "/api/queue/submit", submit, pat) == (403, "forbidden")
        job = (await server.good("POST", "/api/queue/submit", submit, ann))["job_id"]
        assert (await asked(server, "POST", f"/api/approvals/{job}/approve", {}, ann))[0] == 403
        second = (await server.good("POST", "/api/queue/submit", submit, ann))["job_id"]
        await server.good("POST", f"/api/approvals/{job}/approve", {}, pat)

        await server.good("PUT", f"{ROLES}/approver", {**body, "all_jobs": False})
        assert (await asked(server, "POST", f"/api/approvals/{second}/approve", {}, pat))[0] == 403, "at once"
        assert await asked(server, "DELETE", f"{ROLES}/approver", None, server.admin) == (409, "conflict")
        listed = (await server.good("GET", ROLES))["roles"]
        assert [(one["name"], one["users"]) for one in listed if not one["built_in"]] == [("approver", 1)]
        user = next(
            one for one in (await server.good("GET", "/api/admin/users"))["users"] if one["name"] == "pat"
        )
        await server.good("PATCH", f"/api/admin/users/{user['id']}", {"role": "viewer"})
        await server.good("DELETE", f"{ROLES}/approver")
        assert await asked(
            server, "PATCH", f"/api/admin/users/{user['id']}", {"role": "approver"}, server.admin
        ) == (
            422,
            "invalid",
        )
        entries = (await server.good("GET", "/api/audit?target_type=role"))["entries"]
        assert [one["event_type"] for one in entries] == ["role.deleted", "role.set", "role.set"]
        assert entries[-1]["details"]["permissions"] == [
            "admin.see_all",
            "queue.read",
            "queue.approve",
            "jobs.read",
        ]
    finally:
        await server.close()


async def test_a_role_never_gives_more_than_its_maker_has(tmp_path: Path) -> None:
    """Whoever manages users and no more makes roles of that, and neither themselves nor others to more."""
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        await server.good("PUT", f"{ROLES}/people", {"permissions": ["admin.users", "jobs.read"]})
        await server.good("PUT", f"{ROLES}/keeper", {"permissions": ["jobs.read", "admin.audit"]})
        mal = await server.user("mal", "people")
        for path, body in (
            ("more", {"permissions": ["jobs.read", "admin.audit"]}),
            ("people", {"permissions": ["admin.users", "jobs.read", "admin.tokens"]}),
            ("keeper", {"permissions": ["jobs.read"]}),
            ("mine", {"permissions": ["jobs.read"], "all_jobs": True}),
        ):
            assert await asked(server, "PUT", f"{ROLES}/{path}", body, mal) == (403, "forbidden"), path
        for wild in (["*"], ["admin.*"], ["no.such"]):
            assert (await asked(server, "PUT", f"{ROLES}/wild", {"permissions": wild}, mal))[0] in (403, 422)
        assert await asked(server, "DELETE", f"{ROLES}/keeper", None, mal) == (403, "forbidden")
        for role in ("keeper", "member", "admin"):
            new = {"name": "eve", "role": role, "password": PASSWORD}
            assert await asked(server, "POST", "/api/admin/users", new, mal) == (403, "forbidden"), role
        own = await server.good("GET", "/api/me", None, mal)
        assert (await asked(server, "PATCH", f"/api/admin/users/{own['id']}", {"role": "admin"}, mal))[
            0
        ] == 403
        await server.good("PUT", f"{ROLES}/less", {"permissions": ["jobs.read"]}, mal)
        await server.good(
            "POST", "/api/admin/users", {"name": "eve", "role": "less", "password": PASSWORD}, mal
        )

        token = await server.good("POST", "/api/me/tokens", {"name": "t", "permissions": ["jobs.read"]}, mal)
        bearer = {"authorization": f"Bearer {token['token']}"}
        assert (await asked(server, "GET", "/api/jobs", None, bearer))[0] == 200
        await server.good("PUT", f"{ROLES}/people", {"permissions": ["admin.users"]})
        assert (await asked(server, "GET", "/api/jobs", None, bearer))[0] == 403, "a token loses it as well"
        assert (await asked(server, "GET", "/api/jobs", None, mal))[0] == 403
    finally:
        await server.close()


async def test_what_a_lead_holds_for_a_team_is_not_theirs_to_give(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        held = ["admin.users", "jobs.read", "queue.read"]
        await server.good("PUT", f"{ROLES}/people", {"permissions": held, "all_jobs": True})
        mal = await server.user("mal", "people")
        await server.good("POST", "/api/teams", {"name": "lab"})
        await server.good("PUT", "/api/teams/lab/members/mal", {"role": "lead"})
        assert "queue.approve" in (await server.good("GET", "/api/whoami", None, mal))["permissions"]
        more = {"permissions": [*held, "queue.approve"], "all_jobs": True}
        assert await asked(server, "PUT", f"{ROLES}/mine", more, mal) == (403, "forbidden")
        await server.good("PUT", f"{ROLES}/mine", more)
        own = await server.good("GET", "/api/me", None, mal)
        refused = await asked(server, "PATCH", f"/api/admin/users/{own['id']}", {"role": "mine"}, mal)
        assert refused == (403, "forbidden")
        await server.good("PUT", f"{ROLES}/same", {"permissions": held, "all_jobs": True}, mal)
    finally:
        await server.close()


async def test_nobody_becomes_the_lead_of_a_team_by_a_link_that_they_made_with_less(tmp_path: Path) -> None:
    """A link sets the password of whom it is for: whoever makes it could be them."""
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()

    async def linked(name: str, by: dict[str, str]) -> tuple[int, str]:
        answer = await server.ask("POST", f"/api/admin/users/{ids[name]}/link", None, by)
        return answer.status, str(json.loads(answer.body).get("link", "")).partition("k=")[2]

    try:
        roles = {one["name"]: one for one in (await server.good("GET", ROLES))["roles"]}
        viewer = roles["viewer"]["permissions"]
        narrow = await server.token("narrow", "admin.users", *viewer)
        wide = await server.token("wide", "admin.users", "queue.approve", "queue.priority", *viewer)
        ids = {}
        for name in ("ada", "bob"):
            body = {"name": name, "role": "viewer"}
            ids[name] = (await server.good("POST", "/api/admin/users", body))["id"]
        (_, from_above), (_, from_below) = await linked("ada", wide), await linked("bob", narrow)
        await server.good("POST", "/api/teams", {"name": "lab"})
        for name in ids:
            await server.good("PUT", f"/api/teams/lab/members/{name}", {"role": "lead"})
        used = {"k": from_below, "password": "another fine password"}
        assert await asked(server, "POST", "/api/start", used, {}) == (404, "link_used")
        assert await asked(server, "GET", f"/api/start?k={from_above}", None, {}) == (200, "")
        assert (await linked("bob", narrow))[0] == 403
        assert (await linked("bob", wide))[0] == 200
    finally:
        await server.close()


async def test_who_becomes_an_admin_in_this_moment_is_out_of_reach_at_once(tmp_path: Path) -> None:
    """What is asked while the promotion is being written is judged by the role that was written."""
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        await server.good("PUT", f"{ROLES}/people", {"permissions": ["admin.users", "jobs.read"]})
        await server.good("PUT", f"{ROLES}/less", {"permissions": ["jobs.read"]})
        mal = await server.user("mal", "people")
        for number, (method, part, body) in enumerate(
            (("POST", "/link", None), ("DELETE", "", None), ("PATCH", "", {"role": "less"}))
        ):
            new = {"name": f"eve{number}", "role": "less", "password": PASSWORD}
            path = f"/api/admin/users/{(await server.good('POST', '/api/admin/users', new))['id']}"
            promoted = asyncio.create_task(server.good("PATCH", path, {"role": "admin"}))
            tried = asyncio.create_task(asked(server, method, path + part, body, mal))
            assert (await promoted)["role"] == "admin"
            assert await tried == (403, "forbidden"), (method, part)
            users = (await server.good("GET", "/api/admin/users"))["users"]
            after = next(one for one in users if one["name"] == new["name"])
            assert (after["role"], after["disabled_at"]) == ("admin", None)
    finally:
        await server.close()
