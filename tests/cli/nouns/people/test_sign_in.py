"""`simpletuner sign-in …`: what is asked of the server, and what is told of a test."""

from pathlib import Path

from tests.cli.conftest import FakeServer, Run

PROVIDERS = "/api/admin/sign-in/providers"
CORP = {
    "id": "corp",
    "title": "Corp",
    "source": "added",
    "enabled": False,
    "sessions": 0,
    "issuer": "https://id.example.org",
    "client_id": "fleet",
    "has_secret": True,
    "problem": "",
    "scopes": ["openid"],
    "groups_claim": "groups",
    "subject_claim": "sub",
    "redirect_uri": "https://fleet.example.org/login/back/corp",
    "backchannel_uri": "https://fleet.example.org/api/login/providers/corp/logout",
    "trial": None,
}


def test_a_provider_is_added_with_its_secret_from_a_file_and_groups_by_role_and_team(
    ask: Run, server: FakeServer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    server.on("POST", PROVIDERS, CORP)
    words = ["--issuer", CORP["issuer"], "--client-id", "fleet", "--from-file", str(secret)]
    words += ["--role", "admin=a=b", "--role", "approver=lab", "--everybody", "viewer"]
    words += ["--team", "vision: x:lead=leads", "--scope", "openid", "--scope", "groups", "--leeway", "2m"]
    answers = ask("sign-in", "add", "corp", *map(str, words))
    assert (answers.code, "hush" in answers.out + answers.err) == (0, False)
    assert "/login/back/corp" in answers.out
    (asked,) = server.asked("POST", PROVIDERS)
    assert asked.body == {
        "id": "corp",
        "issuer": "https://id.example.org",
        "client_id": "fleet",
        "client_secret": "hush",
        "scopes": ["openid", "groups"],
        "leeway_s": 120.0,
        "roles": {"everybody": "viewer", "admin": ["a=b"], "own": {"approver": ["lab"]}},
        "teams": {"vision: x": {"lead": ["leads"]}},
        "enabled": False,
    }
    assert (
        ask("sign-in", "add", "corp", "--issuer", "https://x", "--client-id", "x", "--role", "ml").code == 2
    )
    assert ask("sign-in", "change", "corp", "--team", "vision:boss=ml").code == 2


def test_a_provider_is_changed_switched_and_deleted(ask: Run, server: FakeServer) -> None:
    at = f"{PROVIDERS}/corp"
    server.on("GET", PROVIDERS, {"providers": [CORP]})
    server.on("GET", at, CORP)
    server.on("PATCH", at, CORP)
    server.on("DELETE", at, {"id": "corp"})
    assert ask("sign-in", "list", "-o", "name").out == "corp\n"
    assert "/login/back/corp" in ask("sign-in", "get", "corp").out
    assert ask("sign-in", "change", "corp", "--title", "New", "--public", "--new-users", "no").code == 0
    assert [ask("sign-in", verb, "corp").code for verb in ("enable", "disable", "delete")] == [0, 0, 0]
    assert [one.body for one in server.asked("PATCH", at)] == [
        {"title": "New", "new_users": False, "client_secret": ""},
        {"enabled": True},
        {"enabled": False},
    ]


def test_a_test_fails_where_something_is_wrong_and_says_what_was_not_checked(
    ask: Run, server: FakeServer
) -> None:
    checks = [
        {
            "name": "issuer",
            "state": "bad",
            "said": "It refuses to begin a log-in: it answers 400.",
            "next": "Ask.",
        },
        {"name": "pkce", "state": "not_made", "said": "Log in once.", "next": ""},
    ]
    server.on("POST", f"{PROVIDERS}/corp/test", {"state": "bad", "checks": checks})
    answers = ask("sign-in", "test", "corp")
    assert (answers.code, "Not checked" in answers.out, "answers 400" in answers.out) == (1, True, True)
    server.on("POST", f"{PROVIDERS}/corp/test", {"state": "not_made", "checks": checks[1:]})
    assert ask("sign-in", "test", "corp").code == 0
