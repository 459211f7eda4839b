"""Log-ins and log-outs of several terminals at once: each is kept."""

import errno
import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from simpletuner_fleet.client import credentials
from simpletuner_fleet.client.credentials import Login, SavedLogins
from tests.cli.conftest import FakeServer, Run

AT_ONCE = 8
ME = {"id": "t_1", "name": "ana", "permissions": ["queue.submit"]}
LONGEST_S = 60


@pytest.fixture
def file(home: Path) -> Path:
    return home / "xdg" / "simpletuner" / "credentials.toml"


@pytest.fixture
def servers() -> Iterator[list[FakeServer]]:
    """Servers that answer once all of them have been asked."""
    all_asked = threading.Barrier(AT_ONCE)

    def who(seen: object) -> object:
        all_asked.wait(LONGEST_S)
        return ME

    with ExitStack() as stack:
        fakes = [FakeServer() for _ in range(AT_ONCE)]
        for fake in fakes:
            fake.on("GET", "/api/whoami", who)
            fake.start()
            stack.callback(fake.stop)
        yield fakes


def command(*words: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "simpletuner_fleet.cli.main", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    process.stdin.write("st_good\n")
    process.stdin.close()
    process.stdin = None
    return process


def all_end_well(processes: "list[subprocess.Popen[str]]") -> None:
    for process in processes:
        _, said = process.communicate(timeout=LONGEST_S)
        assert process.returncode == 0, said


def test_logins_at_once_are_all_kept(servers: list[FakeServer], file: Path) -> None:
    all_end_well([command("login", server.url) for server in servers])
    assert set(credentials.read(file).servers) == {server.url for server in servers}


def test_a_logout_forgets_its_own_server_alone_while_others_log_in(
    servers: list[FakeServer], file: Path
) -> None:
    old = [f"http://127.0.0.1:{port}" for port in range(1, AT_ONCE + 1)]
    credentials.write(file, SavedLogins(old[0], {url: Login("st_old") for url in [*old, "http://kept:1"]}))
    words = [("login", server.url) for server in servers] + [("logout", url) for url in old]
    all_end_well([command(*each) for each in words])
    assert set(credentials.read(file).servers) == {"http://kept:1", *(server.url for server in servers)}


def test_a_folder_that_takes_no_locks_keeps_the_login_and_says_what_may_be_lost(
    run: Run, server: FakeServer, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a home on NFS does whose server or mount has no locks."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    server.on("GET", "/api/whoami", ME)
    token = home / "token"
    token.write_text("st_good")
    monkeypatch.setattr(fcntl, "flock", refuse)
    result = run("login", server.url, "--token-file", str(token))
    assert result.code == 0, result.err
    assert server.url in credentials.read(file).servers
    assert f"{file.parent} takes no locks (No locks available)" in result.err
    result = run("logout")
    assert (result.code, "takes no locks" in result.err) == (0, True), result.err


def test_a_logout_where_nobody_is_logged_in_leaves_nothing_behind(run: Run, file: Path) -> None:
    assert run("logout").code != 0
    assert not file.parent.exists()
