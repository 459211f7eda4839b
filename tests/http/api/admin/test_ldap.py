"""Logging in with the name and password of a directory: against a real slapd, and one that means ill."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import ProviderUnusable, WrongPassword
from simpletuner_fleet.core.people.sign_in.directories import Directory, group_names
from simpletuner_fleet.core.people.sign_in.providers import RoleRules, TeamGroups
from simpletuner_fleet.orchestrator.sign_in.directory import AskedDirectory
from simpletuner_fleet.orchestrator.sign_in.ldap.ber import BerReader, GarbledLdap, encoded, head_at
from simpletuner_fleet.orchestrator.sign_in.ldap.filters import UnreadableFilter, read_ldap_filter
from tests.directory_server import BASE, DirectoryServer, directory_server
from tests.http.sign_in_kit import Scene, problem, scene

ADA = {"name": "ada", "password": "engine no 1"}


@pytest.fixture(scope="module")
def slapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryServer]:
    with directory_server(tmp_path_factory.mktemp("slapd")) as server:
        if server is None:
            pytest.skip("apt-get cannot bring slapd to this machine")
        yield server


async def log_in(browser: httpx2.AsyncClient, **who: str) -> httpx2.Response:
    return await browser.post("/api/login", json=who, headers={"Sec-Fetch-Site": "same-origin"})


async def role_of(browser: httpx2.AsyncClient) -> Any:
    return (await browser.get("/api/me")).json()["role"]


async def person(settings: Directory, name: str, password: str) -> tuple[str, frozenset[str]]:
    known = await AskedDirectory(settings, 20.0).person(name, password)
    return known.name, known.groups


async def test_somebody_logs_in_by_either_tls_and_is_who_the_directory_says(slapd: DirectoryServer) -> None:
    ways = {
        "ldaps": slapd.settings(),
        "StartTLS": slapd.settings(port=slapd.port, tls_from_the_start=False),
        "plain, on this machine": slapd.settings(port=slapd.port, tls_from_the_start=False, plain=True),
    }
    for settings in ways.values():
        name, groups = await person(settings, "ada", ADA["password"])
        assert name == "ada"
        assert sorted(groups) == [f"cn=ml,{BASE}", f"cn=vision\\2C leads,{BASE}", "ml", "vision, leads"]


async def test_roles_and_teams_follow_the_groups_and_a_local_name_is_never_asked_for(
    slapd: DirectoryServer,
) -> None:
    settings = slapd.settings(teams={"vision": TeamGroups(lead=("vision, leads",))})
    async with scene(directories=[settings]) as it, it.browser() as browser, it.browser() as other:
        assert "at Corp" in (await browser.get("/login")).text
        await it.running.post("/api/teams", {"name": "vision"})
        assert (await log_in(browser, **ADA)).status_code == 200
        assert await role_of(browser) == "member"
        [team] = (await it.running.get("/api/teams"))["teams"]
        assert [(one["name"], one["role"]) for one in team["members"]] == [("ada", "lead")]
        [entry] = await it.audited("user.login")
        assert entry["details"] == {"name": "ada", "provider": "corp"}
        for wrong in ("", "engine no 2"):
            assert problem(await log_in(other, name="ada", password=wrong))[0] in (401, 422)
        assert problem(await log_in(other, name="nobody", password="x")) == (401, "wrong_password")
        _forbid_directory(it)
        await it.running.post("/api/admin/users", {"name": "bob", "password": "a local password"})
        assert problem(await log_in(other, name="bob", password="bob's password")) == (401, "wrong_password")


def _forbid_directory(it: Scene) -> None:
    """From here on nobody can be reached there, so that whoever is asked for would answer 502."""
    [directory] = it.running.deps.sign_in.directories
    directory.settings = replace(directory.settings, port=1)


async def test_what_is_typed_is_a_value_and_never_a_filter(slapd: DirectoryServer) -> None:
    settings = slapd.settings()
    for name in ("*", "a*", "ada)(uid=*", "*)(objectClass=*", "ada\0", "\\61da", "eve\\2a", "", "ad" * 5000):
        with pytest.raises(WrongPassword):
            await person(settings, name, ADA["password"])
    assert (await person(settings, "eve*", "eve's password"))[0] == "eve*"
    for password in ("", "\0", "engine no 1\0"):
        with pytest.raises(WrongPassword):
            await person(settings, "ada", password)
    with pytest.raises(WrongPassword):  # two people have this address: neither of them is let in
        await person(slapd.settings(user_filter="(mail={name})"), "team@example.org", "bob's password")


async def test_a_directory_that_cannot_be_believed_is_said_so(slapd: DirectoryServer, tmp_path: Path) -> None:
    for settings in (
        slapd.settings(ca_file=""),
        slapd.settings(host="127.0.0.2"),
        slapd.settings(port=1),
        slapd.settings(bind_password="another"),
        slapd.settings(subject_attribute="telephoneNumber"),
        slapd.settings(port=slapd.port),
    ):
        with pytest.raises(ProviderUnusable):
            await person(settings, "ada", ADA["password"])
    async with scene(directories=[slapd.settings(port=1)]) as it, it.browser() as browser:
        assert problem(await log_in(browser, **ADA)) == (502, "provider_unusable")
        await it.running.post(
            "/api/admin/users", {"name": "root", "password": "a local password", "role": "admin"}
        )
        assert (await log_in(browser, name="root", password="a local password")).status_code == 200


async def test_who_loses_every_group_is_out_and_nobody_is_taken_over(slapd: DirectoryServer) -> None:
    nobody = slapd.settings(roles=RoleRules(admin=("none",)))
    async with scene(directories=[slapd.settings()]) as it, it.browser() as browser:
        await log_in(browser, name="bob", password="bob's password")
        assert await role_of(browser) == "viewer"
        [directory] = it.running.deps.sign_in.directories
        directory.settings = nobody
        async with it.browser() as other:
            assert problem(await log_in(other, name="bob", password="bob's password")) == (403, "no_role")
        assert problem(await browser.get("/api/me")) == (401, "session_ended")


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A directory that says just this, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    connection.recv(65_536)
                    connection.sendall(answer)
                connection.recv(65_536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(20)


BOUND = bytes.fromhex("300c02010161070a010004000400")
STARTED = bytes.fromhex("300c02010178070a010004000400")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x30\x84\x7f\xff\xff\xff",
        b"\x30\x80",
        b"\x30\x03\x02\x01\x09",
        BOUND.replace(b"\x02\x01\x01", b"\x02\x01\x07"),
        STARTED + BOUND,
    ],
)
async def test_an_answer_that_is_no_answer_lets_nobody_in(answer: bytes) -> None:
    """The last: words said in plain before TLS, which a man in the middle would like to be heard after it."""
    with answering(answer) as port:
        settings = Directory(
            id="x",
            title="x",
            host="127.0.0.1",
            port=port,
            tls_from_the_start=False,
            base="dc=x",
            bind_dn="cn=x",
        )
        settings = replace(settings, bind_password="x", plain=not answer.startswith(STARTED))
        with pytest.raises(ProviderUnusable, match="cannot be read"):
            await asyncio.wait_for(AskedDirectory(settings, 10.0).person("ada", "x"), 60)


def test_filters_are_read_before_anything_is_put_into_them() -> None:
    nested = read_ldap_filter("(&(objectClass=user)(|(uid={name})(!(disabled=*))))", ("name",))
    hostile = nested.message({"name": "*)(uid=*"})
    assert b"*)(uid=*" in hostile
    assert len(BerReader(hostile).element()[1]) > 0
    rule = read_ldap_filter("(member:1.2.840.113556.1.4.1941:={dn})", ("dn",))
    assert b"1.2.840.113556.1.4.1941" in rule.message({"dn": "cn=x"})
    assert read_ldap_filter("(cn=a\\2ab)", ()).message({}).endswith(b"a*b")
    for text in (
        "",
        "uid={name}",
        "(uid={name}",
        "(uid=a*b)",
        "(&)",
        "(!(a=b)(c=d))",
        "(uid={other})",
        "(a=b)x",
    ):
        with pytest.raises(UnreadableFilter):
            read_ldap_filter(text, ("name",))
    with pytest.raises(UnreadableFilter):
        read_ldap_filter("(!" * 20 + "(a=b)" + ")" * 20, ())


def test_names_of_groups_are_read_as_the_directory_writes_them() -> None:
    assert group_names("cn=ml,dc=x") == ("cn=ml,dc=x", "ml")
    assert group_names("CN=a\\, b\\2Cc+ou=y,dc=x")[1] == "a, b,c"
    assert group_names("no name") == ("no name",)


def test_lengths_that_lie_are_refused() -> None:
    assert encoded(0x04, b"x" * 300)[:4] == b"\x04\x82\x01\x2c"
    for data in (b"\x04\x85\x01\x01\x01\x01\x01", b"\x04\x84\x7f\xff\xff\xff"):
        with pytest.raises(GarbledLdap):
            head_at(data, 0)
    with pytest.raises(GarbledLdap):
        BerReader(b"\x04\x05ab").element()
