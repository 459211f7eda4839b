"""With many users, one more of them or another role costs no look at all the others."""

from pathlib import Path

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.scim.resources import ScimSource
from simpletuner_fleet.core.people.sign_in.providers import RoleRules
from simpletuner_fleet.engine.memory.organisation import read_organisation
from simpletuner_fleet.orchestrator.people import accounts
from simpletuner_fleet.orchestrator.scim import groups, users
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource

BY = Actor("t_1", "scim")
SOURCE = IdentitySource(
    id="corp",
    issuer="https://id",
    roles=RoleRules(member=("ml",)),
    new_users=True,
    scim=ScimSource(provider="corp"),
)


async def test_users_by_scim_are_added_to_what_is_known_and_the_quotas_follow_their_roles(
    tmp_path: Path,
) -> None:
    server = await InProcessServer(tmp_path / "server", 1).open()
    try:
        await server.good("POST", "/api/teams", {"name": "lab"})
        quota = {"kind": "running_jobs", "scope": "role", "subject": "member", "ceiling": 0, "action": "wait"}
        await server.good("POST", "/api/quotas", quota)
        before = server.fleet.organisation
        made = [
            (
                await users.create(server.fleet, SOURCE, {"userName": f"u{n}", "externalId": f"s{n}"}, BY)
            ).resource
            for n in range(5)
        ]
        book = await server.fleet.act(lambda transaction: transaction.index.roster.book)
        assert book is not None
        assert list(book.concerning(made[0].id, "")) == []
        members = [{"value": made[0].id}]
        await groups.create(server.fleet, SOURCE, {"displayName": "ml", "members": members}, BY)
        assert [one.subject for one, _ in book.concerning(made[0].id, "")] == ["member"]
        await accounts.change_user(server.fleet, made[1].id, BY, lambda *_, **_more: None, role=Role.MEMBER)
        assert [one.subject for one, _ in book.concerning(made[1].id, "")] == ["member"]
        after = server.fleet.organisation
        assert after.teams is before.teams, "nothing else was read again"
        stored = await server.fleet.read(read_organisation)
        assert (dict(after.roles), dict(after.names)) == (dict(stored.roles), dict(stored.names))
        assert after.roles[made[0].id] == Role.MEMBER
    finally:
        await server.close()
