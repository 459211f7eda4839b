"""`simpletuner users`, and opening the console."""

import stat
import sys
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.programs import browser
from tests.cli.conftest import Answer, FakeServer, Run, Seen

BOB = {"id": "u_1", "name": "Bob", "role": "member", "created_at": None}
LINK = {"link": "http://x/start?k=ok_1", "expires_at": "2026-11-15T10:00:00Z"}


@pytest.fixture
def users(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/admin/users", {"users": [BOB]})
    server.on("PATCH", "/api/admin/users/u_1", lambda seen: {**BOB, **seen.body})
    server.on("POST", "/api/admin/users/u_1/link", LINK)
    server.on("POST", "/api/admin/users/link", LINK)
    server.on("POST", "/api/admin/users", Answer(201, {**BOB, **LINK, "link_expires_at": None}))
    return server


def test_a_user_is_created_with_a_link_and_listed(ask: Run, users: FakeServer) -> None:
    result = ask("users", "create", "Bob", "--role", "viewer")
    assert (result.code, "http://x/start?k=ok_1" in result.out) == (0, True)
    assert users.asked("POST", "/api/admin/users")[0].body == {"name": "Bob", "role": "viewer"}
    assert ask("users", "list", "-o", "name").out == "u_1\n"
    assert "Bob" in ask("users", "list").out


def test_users_are_read_page_by_page_and_no_further_than_needed(ask: Run, users: FakeServer) -> None:
    pages = {"": (["u_2", "u_3"], "a"), "a": (["u_1"], "b"), "b": (["u_4"], None)}

    def page(seen: Seen) -> dict[str, object]:
        ids, following = pages[seen.query.get("cursor", [""])[0]]
        rows = [BOB if one == "u_1" else {**BOB, "id": one, "name": one} for one in ids]
        return {"users": rows, "next": following}

    users.on("GET", "/api/admin/users", page)
    assert ask("users", "list", "-o", "name").out.split() == ["u_2", "u_3", "u_1", "u_4"]
    before = len(users.asked("GET", "/api/admin/users"))
    assert ask("users", "disable", "u_1").code == 0
    assert len(users.asked("GET", "/api/admin/users")) - before == 2
    assert ask("users", "enable", "bob").code == 0
    assert ask("users", "disable", "nobody").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (("disable", "bob"), {"disabled": True}),
        (("enable", "u_1"), {"disabled": False}),
        (("set-role", "BOB", "admin"), {"role": "admin"}),
    ],
)
def test_a_user_is_changed_by_name_or_id(
    ask: Run, users: FakeServer, words: tuple[str, ...], body: dict[str, object]
) -> None:
    assert ask("users", *words).code == 0
    assert users.asked("PATCH", "/api/admin/users/u_1")[0].body == body


def test_links_are_made(ask: Run, users: FakeServer) -> None:
    assert ask("users", "link", "-o", "name").out == "http://x/start?k=ok_1\n"
    assert ask("users", "reset-password", "Bob", "--json").json["link"] == "http://x/start?k=ok_1"
    assert ask("users", "reset-password", "nobody").code == ExitCode.NOT_FOUND


def test_a_page_is_opened_only_in_front_of_a_screen_and_its_key_is_in_no_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    browser.open_page("http://x/start?k=ok_1", tmp_path)
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    browser.open_page("http://x/start?k=ok_1&a=<b>", tmp_path)
    door = Path(unquote(urlsplit(opened[0]).path))
    assert "ok_1" not in opened[0]
    assert "url=http://x/start?k=ok_1&amp;a=&lt;b&gt;" in door.read_text()
    assert stat.S_IMODE(door.stat().st_mode) == 0o600
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    browser.open_page("http://x/", tmp_path)
    assert len(opened) == 1


def test_a_role_of_ones_own_is_set_listed_and_deleted(ask: Run, server: FakeServer) -> None:
    role = {"name": "approver", "permissions": ["jobs.read"], "all_jobs": True, "built_in": False, "users": 0}
    server.on("GET", "/api/admin/roles", {"roles": [role], "permissions": ["jobs.read"]})
    server.on("PUT", "/api/admin/roles/approver", role)
    server.on("DELETE", "/api/admin/roles/approver", {"id": "approver"})
    assert ask("roles", "set", "approver", "--permission", "jobs.read", "--all-jobs").code == 0
    (asked,) = server.asked("PUT", "/api/admin/roles/approver")
    assert asked.body == {"permissions": ["jobs.read"], "all_jobs": True}
    assert "jobs.read" in ask("roles", "list").out
    assert ask("roles", "list", "-o", "name").out == "approver\n"
    assert "approver" in ask("roles", "delete", "approver").err
    assert len(server.asked("DELETE", "/api/admin/roles/approver")) == 1


def test_a_verification_says_from_which_entry_on(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/audit/verify", {"valid": True, "checked": 7, "problems": [], "emptied": 41})
    result = ask("audit", "verify")
    assert (result.code, "from entry 42 on" in result.out) == (0, True)


@pytest.mark.parametrize("words", ["users create Bob", "users link", "users reset-password Bob"])
@pytest.mark.parametrize("asked", ["-o name", "-q", "-q --fields name", "--json --fields name", "--json"])
def test_a_link_is_shown_once_however_little_is_asked_for(
    ask: Run, users: FakeServer, words: str, asked: str
) -> None:
    shown = ask(*words.split(), *asked.split())
    assert shown.code == 0
    assert (shown.out + shown.err).count(LINK["link"]) == 1
