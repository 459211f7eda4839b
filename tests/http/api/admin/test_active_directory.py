"""The habits of Active Directory: with a real slapd as far as it can have them, and with a small server beyond."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import ProviderUnusable, WrongPassword
from simpletuner_fleet.core.people.sign_in.claims import Person
from simpletuner_fleet.core.people.sign_in.directories import Directory
from simpletuner_fleet.core.people.sign_in.providers import RoleRules, TeamGroups
from simpletuner_fleet.orchestrator.sign_in.directory import AskedDirectory
from tests.directory_server import BASE
from tests.domain_server import ADA, USER_FILTER, DomainServer, domain_server
from tests.http.sign_in_kit import scene
from tests.small_directory import SmallDirectory, small_directory

PASSWORD = "engine no 1"
GUID = "00010203ff05060708090a0b0c0d0e0f"


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DomainServer]:
    with domain_server(tmp_path_factory.mktemp("domain")) as server:
        if server is None:
            pytest.skip("apt-get cannot bring slapd to this machine")
        yield server


async def person(settings: Directory, name: str, password: str = PASSWORD) -> Person:
    return await AskedDirectory(settings, 20.0).person(name, password)


async def test_either_name_is_the_same_person_whose_key_is_the_guid(domain: DomainServer) -> None:
    for typed in ("ada", "ADA", "ada@corp.example"):
        known = await person(domain.settings(), typed)
        assert (known.subject, known.name) == (GUID, "ada")
        assert known.groups >= {f"cn=ML,ou=Staff,{BASE}", "ML"}


async def test_a_disabled_account_is_not_let_in_whatever_its_password(domain: DomainServer) -> None:
    with pytest.raises(WrongPassword):
        await person(domain.settings(), "gone", "still right")
    enabled = domain.settings(user_filter="(sAMAccountName={name})")
    assert (await person(enabled, "gone", "still right")).name == "gone", (
        "it is the filter that keeps them out"
    )


async def test_groups_and_names_that_change_there_change_here_and_capitals_are_all_one(
    domain: DomainServer,
) -> None:
    roles = RoleRules(admin=(f"CN=bosses,OU=staff,{BASE.upper()}",), member=("ml",))
    settings = domain.settings(roles=roles, teams={"vision": TeamGroups(lead=("BOSSES",))})
    async with scene(directories=[settings]) as it:

        async def role_of_who_logs_in(name: str) -> tuple[str, int]:
            async with it.browser() as browser:
                answer = await browser.post("/api/login", json={"name": name, "password": PASSWORD})
                assert answer.status_code == 200, answer.text
                me = (await browser.get("/api/me")).json()
                [team] = (await it.running.get("/api/teams"))["teams"]
                return me["role"], len(team["members"])

        await it.running.post("/api/teams", {"name": "vision"})
        assert await role_of_who_logs_in("ada") == ("member", 0)
        domain.change(f"dn: cn=Bosses,ou=Staff,{BASE}\nchangetype: modify\nadd: member\nmember: {ADA}\n")
        domain.change(f"dn: {ADA}\nchangetype: modify\nreplace: sAMAccountName\nsAMAccountName: countess\n")
        try:
            assert await role_of_who_logs_in("countess") == ("admin", 1)
            users = (await it.running.get("/api/admin/users"))["users"]
            assert [user["name"] for user in users] == ["ada"], "the same user under another name"
        finally:
            domain.change(
                f"dn: cn=Bosses,ou=Staff,{BASE}\nchangetype: modify\ndelete: member\nmember: {ADA}\n"
            )
            domain.change(f"dn: {ADA}\nchangetype: modify\nreplace: sAMAccountName\nsAMAccountName: ada\n")
        assert await role_of_who_logs_in("ada") == ("member", 0)


ROOT = "dc=corp,dc=example"
READER, LOVELACE = f"CN=Reader,{ROOT}", f"CN=Lovelace\\, Ada,OU=Staff,{ROOT}"
NAMED = [f"CN=Group {at},{ROOT}" for at in range(10)]
ENTRIES: dict[str, dict[str, list[str]]] = {
    READER: {"sAMAccountName": ["reader"]},
    LOVELACE: {
        "objectClass": ["domainUser"],
        "sAMAccountName": ["ada"],
        "objectGUID": [GUID],
        "userAccountControl": ["512"],
        "memberOf": NAMED,
    },
    f"CN=Gone,{ROOT}": {
        "objectClass": ["domainUser"],
        "sAMAccountName": ["gone"],
        "objectGUID": ["10" * 16],
        "userAccountControl": ["514"],
    },
    f"CN=Vision,{ROOT}": {"member": [LOVELACE]},
    f"CN=Research,{ROOT}": {"member": [f"CN=Vision,{ROOT}", f"CN=Everybody,{ROOT}"]},
    f"CN=Everybody,{ROOT}": {"member": [f"CN=Research,{ROOT}"]},
    f"CN=Others,{ROOT}": {"member": [f"CN=Gone,{ROOT}"]},
}


@pytest.fixture
def small() -> Iterator[tuple[SmallDirectory, Directory]]:
    passwords = {READER: "reads", LOVELACE: PASSWORD, f"CN=Gone,{ROOT}": "still right"}
    directory = SmallDirectory(ENTRIES, passwords)
    with small_directory(directory) as port:
        settings = Directory(
            id="corp",
            title="Corp",
            host="127.0.0.1",
            port=port,
            tls_from_the_start=False,
            plain=True,
            bind_dn=READER,
            bind_password="reads",
            base=ROOT,
            user_filter=USER_FILTER,
            subject_attribute="objectGUID",
            name_attribute="sAMAccountName",
        )
        yield directory, settings


def changed(settings: Directory, **fields: str) -> Directory:
    return replace(settings, **fields)


async def test_a_list_that_comes_in_pieces_is_read_to_its_end(
    small: tuple[SmallDirectory, Directory],
) -> None:
    known = await person(small[1], "ada")
    assert known.groups == {*NAMED, *(f"Group {at}" for at in range(10))}
    assert (known.subject, known.name) == (GUID, "ada")


async def test_groups_within_groups_are_followed_by_the_directorys_own_rule(
    small: tuple[SmallDirectory, Directory],
) -> None:
    nested = changed(small[1], groups_attribute="", group_filter="(member:1.2.840.113556.1.4.1941:={dn})")
    firsts = {one for one in (await person(nested, "ada")).groups if "=" not in one}
    assert firsts == {"Vision", "Research", "Everybody"}
    direct = changed(small[1], groups_attribute="", group_filter="(member={dn})")
    assert {one for one in (await person(direct, "ada")).groups if "=" not in one} == {"Vision"}


async def test_what_it_refuses_is_a_wrong_password_or_told_to_be_wrong_here(
    small: tuple[SmallDirectory, Directory],
) -> None:
    directory, settings = small
    unfiltered = changed(settings, user_filter="(sAMAccountName={name})")
    for name, password, remark in (("ada", "another", "52e"), ("gone", "still right", "533")):
        with pytest.raises(WrongPassword):
            await person(unfiltered, name, password)
        assert directory.remarks[-1] == f"data {remark}"
    with pytest.raises(WrongPassword):
        await person(settings, "gone", "still right")
    with pytest.raises(ProviderUnusable, match="result code 1"):
        await person(changed(settings, bind_dn=""), "ada")
    with pytest.raises(ProviderUnusable, match="result code 49"):
        await person(changed(settings, bind_password="wrong"), "ada")
