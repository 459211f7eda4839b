"""Roles of one's own over real routes: made, held, changed under open sessions, never more than their maker has."""

import json
from pathlib import Path
from typing import Any

import pytest

from devtools.fuzz.house import House
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.postgres import PostgresStore

ROLES = "/api/admin/roles"
PASSWORD = "plum kettle 7 fog"


async def asked(house: House, method: str, path: str, body: Any, who: dict[str, str]) -> tuple[int, str]:
    answer = await house.ask(method, path, body, who)
    return answer.status, str(json.loads(answer.body or b"{}").get("code", ""))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_role_is_made_held_changed_and_deleted(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store: Store | None = (
        PostgresStore(request.getfixturevalue("postgres_database")) if kind == "postgres" else None
    )
    house = await House(tmp_path / "house", 1, Policy(require_approval=True), store).open()
    try:
        ann = await house.user("ann", "member")
        body: dict[str, Any] = {
            "permissions": ["jobs.read", "queue.read", "queue.approve", "admin.see_all"],
            "all_jobs": True,
        }
        await house.good("PUT", f"{ROLES}/approver", body)
        pat = await house.user("pat", "approver")
        me = await house.good("GET", "/api/me", None, pat)
        assert (me["role"], set(me["permissions"])) == ("approver", set(body["permissions"]))

        config = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}
        submit = {"config": config, "target": "worker"}
        assert await asked(house, "POST", "/api/queue/submit", submit, pat) == (403, "forbidden")
        job = (await house.good("POST", "/api/queue/submit", submit, ann))["job_id"]
        assert (await asked(house, "POST", f"/api/approvals/{job}/approve", {}, ann))[0] == 403
        second = (await house.good("POST", "/api/queue/submit", submit, ann))["job_id"]
        await house.good("POST", f"/api/approvals/{job}/approve", {}, pat)

        await house.good("PUT", f"{ROLES}/approver", {**body, "all_jobs": False})
        assert (await asked(house, "POST", f"/api/approvals/{second}/approve", {}, pat))[0] == 403, "at once"
        assert await asked(house, "DELETE", f"{ROLES}/approver", None, house.admin) == (409, "conflict")
        listed = (await house.good("GET", ROLES))["roles"]
        assert [(one["name"], one["users"]) for one in listed if not one["built_in"]] == [("approver", 1)]
        user = next(
            one for one in (await house.good("GET", "/api/admin/users"))["users"] if one["name"] == "pat"
        )
        await house.good("PATCH", f"/api/admin/users/{user['id']}", {"role": "viewer"})
        await house.good("DELETE", f"{ROLES}/approver")
        assert await asked(
            house, "PATCH", f"/api/admin/users/{user['id']}", {"role": "approver"}, house.admin
        ) == (
            422,
            "invalid",
        )
        entries = (await house.good("GET", "/api/audit?target_type=role"))["entries"]
        assert [one["event_type"] for one in entries] == ["role.deleted", "role.set", "role.set"]
        assert entries[-1]["details"]["permissions"] == [
            "admin.see_all",
            "queue.read",
            "queue.approve",
            "jobs.read",
        ]
    finally:
        await house.close()


async def test_a_role_never_gives_more_than_its_maker_has(tmp_path: Path) -> None:
    """Whoever manages users and no more makes roles of that, and neither themselves nor others to more."""
    house = await House(tmp_path / "house", 1, Policy()).open()
    try:
        await house.good("PUT", f"{ROLES}/people", {"permissions": ["admin.users", "jobs.read"]})
        await house.good("PUT", f"{ROLES}/keeper", {"permissions": ["jobs.read", "admin.audit"]})
        mal = await house.user("mal", "people")
        for path, body in (
            ("more", {"permissions": ["jobs.read", "admin.audit"]}),
            ("people", {"permissions": ["admin.users", "jobs.read", "admin.tokens"]}),
            ("keeper", {"permissions": ["jobs.read"]}),
            ("mine", {"permissions": ["jobs.read"], "all_jobs": True}),
        ):
            assert await asked(house, "PUT", f"{ROLES}/{path}", body, mal) == (403, "forbidden"), path
        for wild in (["*"], ["admin.*"], ["no.such"]):
            assert (await asked(house, "PUT", f"{ROLES}/wild", {"permissions": wild}, mal))[0] in (403, 422)
        assert await asked(house, "DELETE", f"{ROLES}/keeper", None, mal) == (403, "forbidden")
        for role in ("keeper", "member", "admin"):
            new = {"name": "eve", "role": role, "password": PASSWORD}
            assert await asked(house, "POST", "/api/admin/users", new, mal) == (403, "forbidden"), role
        own = await house.good("GET", "/api/me", None, mal)
        assert (await asked(house, "PATCH", f"/api/admin/users/{own['id']}", {"role": "admin"}, mal))[
            0
        ] == 403
        await house.good("PUT", f"{ROLES}/less", {"permissions": ["jobs.read"]}, mal)
        await house.good(
            "POST", "/api/admin/users", {"name": "eve", "role": "less", "password": PASSWORD}, mal
        )

        token = await house.good("POST", "/api/me/tokens", {"name": "t", "permissions": ["jobs.read"]}, mal)
        bearer = {"authorization": f"Bearer {token['token']}"}
        assert (await asked(house, "GET", "/api/jobs", None, bearer))[0] == 200
        await house.good("PUT", f"{ROLES}/people", {"permissions": ["admin.users"]})
        assert (await asked(house, "GET", "/api/jobs", None, bearer))[0] == 403, "a token loses it as well"
        assert (await asked(house, "GET", "/api/jobs", None, mal))[0] == 403
    finally:
        await house.close()
