"""Which server, which token, whose trust; and what is kept of it."""

import io
import json
import platform
import stat
from pathlib import Path

import pytest

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.client import ClientError, Fleet, credentials
from simpletuner_fleet.client.connection import is_local, local_server
from simpletuner_fleet.client.credentials import Login, SavedLogins
from tests.cli.conftest import FakeServer, Run, Seen, problem
from tests.client.test_trust import make, tls_server

ME = {"id": "t_1", "name": "ana", "permissions": ["queue.submit"]}


@pytest.fixture
def file(home: Path) -> Path:
    return home / "xdg" / "simpletuner" / "credentials.toml"


@pytest.fixture
def known(server: FakeServer) -> FakeServer:
    def who(seen: object) -> object:
        given = seen.headers.get("authorization")  # type: ignore[attr-defined]
        return ME if given == "Bearer st_good" else problem(401, "invalid_token", "Invalid token.")

    server.on("GET", "/api/whoami", who)
    return server


def type_in(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_login_is_tried_kept_privately_and_used(
    run: Run, known: FakeServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in("  st_good\n", monkeypatch)
    result = run("login", known.url)
    assert result.code == 0
    assert f"Logged in to {known.url} as ana" in result.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("whoami", "--json").json == ME
    assert run("logout").code == 0
    assert "st_good" not in file.read_text()
    assert run("logout").code == ExitCode.NOT_FOUND


def test_a_token_that_is_refused_is_not_kept(
    run: Run, known: FakeServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in("st_bad\n", monkeypatch)
    assert run("login", known.url).code == ExitCode.AUTH
    assert not file.exists()


def test_a_workers_token_and_an_empty_one_are_told_apart(
    run: Run, known: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("wt_x")
    result = run("login", known.url, "--token-file", str(token))
    assert result.code == ExitCode.USAGE
    assert "this is a worker token" in result.err
    type_in("\n", monkeypatch)
    assert run("login", known.url).code == ExitCode.USAGE
    assert run("login", "not a url").code == ExitCode.USAGE


def test_many_servers_are_remembered_and_one_is_current(file: Path) -> None:
    kept = SavedLogins(
        "https://b:1", {"https://a:1": Login("st_a", "sha256:00"), "https://b:1": Login("st_b")}
    )
    credentials.write(file, kept)
    assert credentials.read(file) == kept


def test_a_file_that_others_can_read_is_refused(run: Run, file: Path) -> None:
    credentials.write(file, SavedLogins("http://a:1", {"http://a:1": Login("st_a")}))
    file.chmod(0o644)
    result = run("whoami")
    assert result.code == ExitCode.AUTH
    assert "can be read by other users" in result.err
    assert f"chmod 600 {file}" in result.err


@pytest.mark.parametrize("text", ["[servers", "current = 5", 'current = "http://a:99999"', "[servers.x]"])
def test_a_broken_file_is_told(run: Run, file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.touch(0o600)
    file.write_text(text)
    result = run("whoami")
    assert result.code == ExitCode.FAILED
    assert f"fix or remove {file}" in result.err


@pytest.mark.parametrize("token", ["st_été", "st_one\ntwo", "st_one two", "st_\udcff"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(
    run: Run, known: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", token)
    result = run("whoami", "--url", known.url)
    assert (result.code, "E_INVALID_TOKEN" in result.err) == (ExitCode.AUTH, True)
    assert "SIMPLETUNER_API_TOKEN" in result.err
    assert "two" not in result.err
    with Fleet(known.url, token) as fleet, pytest.raises(ClientError, match="Invalid token") as refused:
        fleet.whoami()
    assert refused.value.code == "E_INVALID_TOKEN"
    assert known.seen == []


def test_a_kept_token_goes_to_its_own_server_only(run: Run, known: FakeServer, file: Path) -> None:
    credentials.write(file, SavedLogins("http://other:1", {"http://other:1": Login("st_good")}))
    run("whoami", "--url", known.url)
    assert "authorization" not in known.seen[0].headers


def test_the_command_on_the_servers_machine_finds_url_and_admin_token(
    run: Run, known: FakeServer, home: Path
) -> None:
    (home / "data" / "server.json").write_text(json.dumps({"url": known.url, "pid": 1, "fingerprint": None}))
    (home / "data" / "admin_token").write_text("st_good\n")
    assert run("whoami", "--json").json == ME


def test_the_admin_token_is_never_sent_to_another_server(run: Run, known: FakeServer, home: Path) -> None:
    (home / "data" / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1"}))
    (home / "data" / "admin_token").write_text("st_good\n")
    assert run("whoami", "--url", known.url).code == ExitCode.AUTH
    assert "authorization" not in known.seen[0].headers
    local = local_server(home / "data")
    assert is_local("http://127.0.0.1:1", local)
    assert is_local("http://localhost:1", local)
    for url in ("http://127.0.0.1:2", "https://127.0.0.1:1", "http://10.0.0.5:1"):
        assert not is_local(url, local)


def test_the_servers_own_ca_is_found_in_the_data_folder(run: Run, home: Path, tmp_path: Path) -> None:
    ca = make("ca", ca=True)
    (home / "data" / "tls").mkdir()
    (home / "data" / "tls" / "ca.pem").write_bytes(ca.pem)
    with tls_server(tmp_path, make("server", ca)) as server:
        (home / "data" / "server.json").write_text(json.dumps({"url": server.url}))
        result = run("whoami")
        assert any("/api/whoami" in request for request in server.received)
    assert "E_NOT_AN_ORCHESTRATOR" in result.err


def test_a_pin_is_kept_with_the_login(
    run: Run, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = make("server")
    with tls_server(tmp_path, leaf, body=json.dumps(ME).encode()) as server:
        type_in("st_good\n", monkeypatch)
        assert run("login", server.url, "--ssl-fingerprint", leaf.pin).code == 0
        assert credentials.read(file).servers[server.url].fingerprint == leaf.pin
        assert run("whoami", "--json").json == ME


def test_a_server_json_that_cannot_be_read_is_as_none(home: Path) -> None:
    for text in ("", "[]", '{"url": 7}', "\x00"):
        (home / "data" / "server.json").write_text(text)
        assert local_server(home / "data").url is None


class AtTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A terminal on a machine with a screen."""
    monkeypatch.setattr("sys.stdin", AtTerminal())
    monkeypatch.setattr("simpletuner_fleet.cli.frame.screen.can_open", lambda: True)
    monkeypatch.setenv("BROWSER", "true")
    for name in ("SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def device(known: FakeServer, monkeypatch: pytest.MonkeyPatch, *answers: object) -> list[object]:
    """Returns what the terminal says of itself as it asks."""
    monkeypatch.setattr("simpletuner_fleet.cli.nouns.people.arriving.device.LEAST_POLL_S", 0.01)
    asked = {
        "code": "BCDF-GHJK",
        "secret": "ok_x",
        "page": f"{known.url}/login/terminal?code=BCDF-GHJK",
        "expires_in_s": 60.0,
        "poll_s": 0.01,
    }
    bodies: list[object] = []
    left = iter(answers or [{"token": "st_good", "name": "Ana Lima"}])

    def ask(seen: Seen) -> object:
        bodies.append(seen.body)
        return asked

    known.on("POST", "/api/login/terminals", ask)
    known.on("POST", "/api/login/terminals/claim", lambda seen: next(left))
    return bodies


def test_a_browser_on_any_machine_lets_a_terminal_in(
    run: Run, known: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    device(known, monkeypatch, {"token": None}, {"token": "st_good", "name": "Ana Lima"})
    result = run("login", known.url, "--web")
    assert result.code == 0, result.err
    assert "BCDF-GHJK" in result.err
    assert f"Logged in to {known.url} as Ana Lima" in result.err, (
        "the person, not the token that they were given"
    )
    known.on("POST", "/api/login/terminals/claim", lambda seen: problem(404, "not_found", "It was refused."))
    assert run("login", known.url, "--device").code == ExitCode.NOT_FOUND


def test_at_a_terminal_the_code_is_shown_where_no_browser_opens(
    run: Run, known: FakeServer, desk: pytest.MonkeyPatch
) -> None:
    def shown(*more: str) -> bool:
        bodies = device(known, desk)
        result = run("login", known.url, *more)
        assert (result.code, "BCDF-GHJK" in result.err) == (0, True), result.err
        return bodies == [{"name": platform.node()[:64]}]

    assert shown("--device"), "as it was asked for"
    with desk.context() as patch:
        patch.setenv("SSH_CONNECTION", "192.0.2.1 5 192.0.2.2 22")
        assert shown(), "somebody who is not at this machine"
    with desk.context() as patch:
        patch.setattr("simpletuner_fleet.cli.frame.screen.can_open", lambda: False)
        assert shown(), "no display"


def test_there_is_one_way_in_at_a_time(run: Run, known: FakeServer) -> None:
    assert run("login", known.url, "--web", "--device").code == ExitCode.USAGE
    assert run("login", known.url, "--device", "--token-file", "x").code == ExitCode.USAGE
    assert not known.seen


def test_a_token_is_asked_for_at_a_terminal(run: Run, known: FakeServer, desk: pytest.MonkeyPatch) -> None:
    desk.setattr("getpass.getpass", lambda prompt: "st_good")
    assert run("login", known.url, "--token-file", "-").code == 0


def test_a_login_that_cannot_be_saved_leaves_no_token_behind(tmp_path: Path) -> None:
    file = tmp_path / "xdg" / "credentials.toml"
    file.mkdir(parents=True)
    with pytest.raises(CliError, match="nothing can be written"):
        credentials.write(file, SavedLogins("http://one:1", {"http://one:1": Login("st_secret")}))
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"current = " + b"[" * 100_000])
def test_a_damaged_file_is_told(run: Run, file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o600)
    result = run("whoami")
    assert result.code == ExitCode.FAILED
    assert f"cannot read {file}" in result.err


def test_an_admin_token_that_is_no_text_is_as_none(run: Run, known: FakeServer, home: Path) -> None:
    (home / "data" / "server.json").write_text(json.dumps({"url": known.url}))
    (home / "data" / "admin_token").write_bytes(b"\xff\xfe")
    result = run("whoami")
    assert result.code == ExitCode.AUTH
    assert "unexpectedly" not in result.err


@pytest.mark.parametrize("place", ["/home/ana/\U0001f512.pem", '/home/ana/\x7f"\\.pem'])
def test_what_is_kept_can_be_read_whatever_letters_it_has(file: Path, place: str) -> None:
    kept = SavedLogins("http://one:1", {"http://one:1": Login("st_secret", None, place)})
    credentials.write(file, kept)
    assert credentials.read(file) == kept


def test_a_code_is_shown_also_to_those_who_asked_for_quiet(
    run: Run, known: FakeServer, desk: pytest.MonkeyPatch
) -> None:
    device(known, desk)
    result = run("login", known.url, "--device", "-q")
    assert (result.code, "BCDF-GHJK" in result.err) == (0, True), result.err
