"""A provider tells of its users and groups by SCIM: as Okta and Entra send it, and what it changes here at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.scim.resources import ScimSource, SubjectSource
from simpletuner_fleet.core.people.sign_in.providers import RoleRules, TeamGroups
from simpletuner_fleet.ports import Tx
from tests.http.sign_in_kit import OWN_PAGE, Scene, problem, scene

SCIM = "application/scim+json"
USERS, GROUPS = "/scim/v2/Users", "/scim/v2/Groups"
PATCH_OP = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
CORP = ScimSource(provider="corp")


@asynccontextmanager
async def told_by_scim(
    source: ScimSource = CORP, **changed: Any
) -> AsyncIterator[tuple[Scene, httpx2.AsyncClient]]:
    """A scene, and the provider's own connection with a token that may do nothing else."""
    async with scene(scim=source, **changed) as it:
        made = await it.running.post("/api/admin/tokens", {"name": "okta", "permissions": ["admin.scim"]})
        async with it.running.as_user(made["token"]) as scim:
            scim.headers["content-type"] = SCIM
            yield it, scim


async def made(scim: httpx2.AsyncClient, at: str, **body: Any) -> Any:
    answer = await scim.post(at, json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (201, SCIM), answer.text
    assert answer.headers["location"].endswith(f"{at}/{answer.json()['id']}")
    return answer.json()


async def changed(scim: httpx2.AsyncClient, at: str, *operations: dict[str, Any]) -> Any:
    answer = await scim.patch(at, json={"schemas": [PATCH_OP], "Operations": list(operations)})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def error(answer: httpx2.Response) -> tuple[int, str]:
    body = answer.json()
    assert answer.headers["content-type"] == SCIM
    assert body["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:Error"]
    assert body["status"] == str(answer.status_code)
    assert body["detail"]
    return answer.status_code, body.get("scimType", "")


async def ada_here(it: Scene) -> dict[str, Any]:
    users = (await it.running.get("/api/admin/users"))["users"]
    return next(user for user in users if user["provider"])


async def test_a_user_is_made_found_and_let_in_by_the_groups_that_scim_tells() -> None:
    async with told_by_scim() as (it, scim), it.browser() as browser:
        ada = await made(
            scim, USERS, userName="ada@corp", externalId="s-ada", active=True, name={"givenName": "Ada"}
        )
        assert (await ada_here(it))["disabled_at"] is not None
        assert problem(await it.log_in(browser)) == (403, "no_role")
        for question in ('userName eq "ADA@corp"', 'externalId eq "s-ada"', f'id eq "{ada["id"]}"'):
            page = (
                await scim.get(USERS, params={"filter": question, "startIndex": "1", "count": "1"})
            ).json()
            assert (page["totalResults"], page["itemsPerPage"], page["Resources"][0]["id"]) == (
                1,
                1,
                ada["id"],
            )
        group = await made(scim, GROUPS, displayName="ml", members=[{"value": ada["id"]}])
        assert group["members"] == [{"value": ada["id"], "display": "ada@corp", "type": "User"}]
        assert (await it.log_in(browser)).status_code == 303
        assert (await browser.get("/api/me")).json()["role"] == "member"
        admins = await made(scim, GROUPS, displayName="ml-admins")
        await changed(
            scim,
            f"{GROUPS}/{admins['id']}",
            {"op": "Add", "path": "members", "value": [{"value": ada["id"]}]},
        )
        assert (await browser.get("/api/me")).json()["role"] == "admin"
        shown = (await scim.get(f"{USERS}/{ada['id']}")).json()
        assert sorted(one["display"] for one in shown["groups"]) == ["ml", "ml-admins"]
        await changed(
            scim, f"{GROUPS}/{admins['id']}", {"op": "remove", "path": f'members[value eq "{ada["id"]}"]'}
        )
        assert (await browser.get("/api/me")).json()["role"] == "member"
        assert (await scim.delete(f"{GROUPS}/{group['id']}")).status_code == 204
        assert problem(await browser.get("/api/me")) == (401, "session_ended")


async def test_deactivating_ends_sessions_tokens_and_streams_at_once_and_activating_lets_in_again() -> None:
    async with told_by_scim() as (it, scim), it.browser() as browser:
        ada = await made(scim, USERS, userName="ada", externalId="s-ada")
        await made(scim, GROUPS, displayName="ml", members=[{"value": ada["id"]}])
        await it.log_in(browser)
        own = await browser.post(
            "/api/me/tokens", json={"name": "t", "permissions": ["jobs.read"]}, headers=OWN_PAGE
        )
        async with (
            it.running.as_user(own.json()["token"]) as program,
            browser.stream("GET", "/api/events") as stream,
        ):
            lines = stream.aiter_lines()
            await anext(lines)
            await changed(scim, f"{USERS}/{ada['id']}", {"op": "Replace", "path": "active", "value": "False"})

            async def to_its_end() -> None:
                async for _ in lines:
                    pass

            await asyncio.wait_for(to_its_end(), 30)
            assert (await program.get("/api/jobs")).status_code in (401, 403)
        assert problem(await browser.get("/api/me")) == (401, "session_ended")
        assert problem(await it.log_in(browser)) == (403, "no_role")
        assert (await scim.get(f"{USERS}/{ada['id']}")).json()["active"] is False
        await changed(scim, f"{USERS}/{ada['id']}", {"op": "replace", "value": {"active": True}})
        assert (await it.log_in(browser)).status_code == 303
        assert {entry["actor"] for entry in await it.audited("user.disabled")} == {"okta"}
        assert (await it.audited("scim.user_set"))[0]["details"]["active"] is True


async def test_a_user_who_is_replaced_without_their_external_id_stays_who_they_are() -> None:
    async with told_by_scim() as (it, scim), it.browser() as browser:
        ada = await made(scim, USERS, userName="ada", externalId="s-ada")
        await made(scim, GROUPS, displayName="ml", members=[{"value": ada["id"]}])
        await it.log_in(browser)
        for whole in ({"userName": "ada", "active": False}, {"userName": "ada", "externalId": None}):
            answer = await scim.put(f"{USERS}/{ada['id']}", json=whole)
            assert answer.status_code == 200, answer.text
            assert (answer.json()["externalId"], answer.json()["active"]) == ("s-ada", False)
        assert problem(await browser.get("/api/me")) == (401, "session_ended")
        refused = await scim.put(f"{USERS}/{ada['id']}", json={"userName": "ada", "externalId": ""})
        assert await error(refused) == (400, "invalidValue")


async def test_whom_scim_deletes_stays_out_and_comes_back_as_the_same_user() -> None:
    async with told_by_scim() as (it, scim), it.browser() as browser:
        await it.log_in(browser)
        before = (await ada_here(it))["id"]
        ada = await made(scim, USERS, userName="ada", externalId="s-ada")
        assert ada["id"] == before
        assert problem(await browser.get("/api/me")) == (401, "session_ended")
        assert (await scim.delete(f"{USERS}/{before}")).status_code == 204
        assert await error(await scim.get(f"{USERS}/{before}")) == (404, "")
        assert problem(await it.log_in(browser)) == (403, "no_role")
        again = await made(scim, USERS, userName="ada.l", externalId="s-ada")
        assert again["id"] == before
        assert await error(await scim.post(USERS, json={"userName": "z", "externalId": "s-ada"})) == (
            409,
            "uniqueness",
        )
        assert await error(await scim.post(USERS, json={"userName": "ADA.L", "externalId": "n"})) == (
            409,
            "uniqueness",
        )


async def test_whom_an_administrator_lets_in_is_out_again_when_scim_repeats_its_word() -> None:
    async with told_by_scim() as (it, scim), it.browser() as browser:
        ada = await made(scim, USERS, userName="ada", externalId="s-ada")
        await made(scim, GROUPS, displayName="ml", members=[{"value": ada["id"]}])
        await it.log_in(browser)
        own = {"name": "t", "permissions": ["jobs.read"]}
        token = (await browser.post("/api/me/tokens", json=own, headers=OWN_PAGE)).json()["token"]
        for whole in ({"userName": "ada", "externalId": "s-ada", "active": False},) * 2:
            assert (await scim.put(f"{USERS}/{ada['id']}", json=whole)).status_code == 200
            async with it.running.as_user(token) as program:
                assert problem(await program.get("/api/jobs")) == (401, "invalid_token")
                answer = await it.running.http.patch(
                    f"/api/admin/users/{ada['id']}", json={"disabled": False}
                )
                assert answer.status_code == 200
                assert (await program.get("/api/jobs")).status_code == 200
        by = [entry["actor"] for entry in await it.audited("user.disabled")]
        assert by == ["okta"] * 3, "as long as no group gave a role, and each time that SCIM said so"


async def test_whom_an_administrator_disabled_stays_so_whatever_scim_says() -> None:
    async with told_by_scim() as (it, scim), it.browser() as browser:
        ada = await made(scim, USERS, userName="ada", externalId="s-ada")
        await made(scim, GROUPS, displayName="ml", members=[{"value": ada["id"]}])
        await it.running.http.delete(f"/api/admin/users/{ada['id']}")
        await changed(scim, f"{USERS}/{ada['id']}", {"op": "replace", "value": {"active": False}})
        await changed(scim, f"{USERS}/{ada['id']}", {"op": "replace", "value": {"active": True}})
        assert problem(await it.log_in(browser)) == (409, "user_disabled")


async def test_places_in_teams_follow_the_groups_of_scim() -> None:
    teams = {"vision": TeamGroups(lead=("vision-leads",), member=("vision",))}
    async with told_by_scim(teams=teams, roles=RoleRules(everybody=Role.VIEWER)) as (it, scim):
        await it.running.post("/api/teams", {"name": "vision"})
        people = [
            await made(scim, USERS, userName=f"u{number}", externalId=f"x{number}") for number in range(3)
        ]
        ids = [one["id"] for one in people]
        vision = await made(scim, GROUPS, displayName="vision", members=[{"value": one} for one in ids])

        async def places() -> dict[str, str]:
            [team] = (await it.running.get("/api/teams"))["teams"]
            return {member["name"]: member["role"] for member in team["members"]}

        assert await places() == dict.fromkeys(("u0", "u1", "u2"), "member")
        await changed(
            scim, f"{GROUPS}/{vision['id']}", {"op": "replace", "value": {"displayName": "vision-leads"}}
        )
        assert await places() == dict.fromkeys(("u0", "u1", "u2"), "lead")
        answer = await scim.put(
            f"{GROUPS}/{vision['id']}", json={"displayName": "vision", "members": [{"value": ids[0]}]}
        )
        assert answer.status_code == 200
        assert await places() == {"u0": "member"}
        assert (await scim.delete(f"{USERS}/{ids[0]}")).status_code == 204
        assert await places() == {}
        shown = (await scim.get(f"{GROUPS}/{vision['id']}")).json()
        assert shown["members"] == []
        without = (await scim.get(GROUPS, params={"excludedAttributes": "members"})).json()["Resources"]
        assert [set(one) for one in without] == [{"schemas", "id", "displayName", "meta"}]


async def test_where_groups_come_with_the_log_in_scim_says_only_who_may_come() -> None:
    source = ScimSource(provider="corp", subject=SubjectSource.USER_NAME, groups=False)
    async with told_by_scim(source) as (it, scim), it.browser() as browser:
        ada = await made(scim, USERS, userName="s-ada")
        assert (await it.log_in(browser)).status_code == 303
        assert (await browser.get("/api/me")).json()["role"] == "member"
        await changed(scim, f"{USERS}/{ada['id']}", {"op": "replace", "path": "displayName", "value": "Ada"})
        assert (await browser.get("/api/me")).json()["role"] == "member"
        answer = await scim.put(f"{USERS}/{ada['id']}", json={"userName": "s-ada", "active": False})
        assert answer.json()["active"] is False
        assert problem(await browser.get("/api/me")) == (401, "session_ended")
        await changed(scim, f"{USERS}/{ada['id']}", {"op": "replace", "value": {"active": "True"}})
        assert (await it.log_in(browser)).status_code == 303
        assert await error(await scim.get(GROUPS)) == (404, "")
        kinds = (await scim.get("/scim/v2/ResourceTypes")).json()
        assert [one["id"] for one in kinds["Resources"]] == ["User"]


async def test_what_is_wrong_is_said_in_scims_own_form() -> None:
    async with told_by_scim() as (it, scim):
        assert await error(await scim.get(USERS, params={"filter": 'userName sw "a"'})) == (
            400,
            "invalidFilter",
        )
        assert await error(await scim.post(USERS, json={"externalId": "x"})) == (400, "invalidValue")
        assert await error(await scim.post(USERS, json={"userName": "x"})) == (400, "invalidValue")
        assert await error(await scim.post(USERS, content=b"{")) == (400, "invalidSyntax")
        assert await error(await scim.post(USERS, content=b"x" * 1_100_000)) == (413, "")
        assert await error(
            await scim.post(GROUPS, json={"displayName": "g", "members": [{"value": "u_none"}]})
        ) == (
            400,
            "invalidValue",
        )
        assert (await scim.get(GROUPS)).json()["totalResults"] == 0
        assert await error(await scim.get("/scim/v2/Nothing")) == (404, "")
        assert await error(await scim.patch(f"{USERS}/u_none", json={"Operations": [{"op": "add"}]})) == (
            400,
            "invalidSyntax",
        )
        assert (await scim.get("/api/jobs")).json()["code"] == "forbidden"
        async with it.running.as_user(None) as stranger:
            assert await error(await stranger.get(USERS)) == (401, "")
        config = (await scim.get("/scim/v2/ServiceProviderConfig")).json()
        assert config["patch"] == {"supported": True}
        schemas = (await scim.get("/scim/v2/Schemas")).json()["Resources"]
        for one in schemas:
            assert (await scim.get(f"/scim/v2/Schemas/{one['id']}")).json() == one
    async with scene() as it:
        assert await error(await it.running.http.get(USERS)) == (404, "")


async def test_the_longest_names_are_found_and_long_lists_of_attributes_are_read() -> None:
    async with told_by_scim() as (_, scim):
        name = 'the "long" \\ ' + "n" * 240
        group = await made(scim, GROUPS, displayName=name)
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        many = ",".join(["id", "displayName", *(f"urn:example:attribute:{number}" for number in range(50))])
        answer = await scim.get(GROUPS, params={"filter": f'displayName eq "{quoted}"', "attributes": many})
        assert answer.status_code == 200, answer.text
        assert [one["id"] for one in answer.json()["Resources"]] == [group["id"]]
        by_schema = {"attributes": "urn:ietf:params:scim:schemas:core:2.0:Group:displayName"}
        one = (await scim.get(f"{GROUPS}/{group['id']}", params=by_schema)).json()
        assert (one["displayName"], "members" in one) == (name, False)
        too_long = await scim.get(GROUPS, params={"filter": f'displayName eq "{"n" * 2_000}"'})
        assert await error(too_long) == (400, "invalidFilter")


async def test_a_page_of_users_is_bounded_and_whole() -> None:
    async with told_by_scim() as (_, scim):
        for number in range(3):
            await made(scim, USERS, userName=f"u{number}", externalId=f"x{number}")
        first = (await scim.get(USERS, params={"startIndex": "0", "count": "2"})).json()
        rest = (await scim.get(USERS, params={"startIndex": "3", "count": "99999"})).json()
        assert (first["totalResults"], first["startIndex"], first["itemsPerPage"]) == (3, 1, 2)
        names = [one["userName"] for one in (*first["Resources"], *rest["Resources"])]
        assert sorted(names) == ["u0", "u1", "u2"]
        none = (await scim.get(USERS, params={"count": "-1", "attributes": "userName"})).json()
        assert (none["totalResults"], none["Resources"]) == (3, [])


async def test_a_page_of_groups_ends_where_their_members_are_many() -> None:
    async with told_by_scim() as (it, scim):
        ids = [(await made(scim, GROUPS, displayName=f"g{number}"))["id"] for number in range(3)]
        people = [f"u_{number}" for number in range(20_000)]

        def join(tx: Tx) -> None:
            for group_id in ids:
                tx.add_scim_members(group_id, people)

        await it.running.fleet.store.write(join)
        seen: list[str] = []
        while len(seen) < 3:
            page = (await scim.get(GROUPS, params={"startIndex": str(len(seen) + 1)})).json()
            assert (page["totalResults"], page["itemsPerPage"]) == (3, 1)
            assert len(page["Resources"][0]["members"]) == len(people)
            seen += [one["id"] for one in page["Resources"]]
        assert sorted(seen) == sorted(ids)
        names = (await scim.get(GROUPS, params={"attributes": "displayName"})).json()
        assert {one["displayName"] for one in names["Resources"]} == {"g0", "g1", "g2"}
        assert "members" not in names["Resources"][0]
