"""Ctrl-C while data is pushed: the command ends at once, and the next one goes on."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.files.uploads import Sender, read_folder
from simpletuner_fleet.client.fleet import NO_PROGRESS
from simpletuner_fleet.client.trust import Choices
from tests.cli.test_against_server import COMMAND, Machine
from tests.client.slow_server import slow_server
from tests.e2e.proxy import Proxy

pytestmark = pytest.mark.e2e
BIG_BYTES = 8 * 2**20
SOON_S = 2.0
"""Far less than what a read or a write waits for, and enough on a busy machine: it takes a tenth of it."""


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    folder.mkdir()
    for at in range(6):
        (folder / f"{at}.bin").write_bytes(os.urandom(BIG_BYTES))
    return folder


@contextmanager
def pushing(url: str, folder: Path, home: Path, token: str = "st_x") -> Iterator[subprocess.Popen[str]]:
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")},
        "SIMPLETUNER_URL": url,
        "SIMPLETUNER_API_TOKEN": token,
        "SIMPLETUNER_HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "SIMPLETUNER_LANG": "en",
    }
    words = [*COMMAND, "data", "push", str(folder), "--name", "pets"]
    with subprocess.Popen(
        words, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        try:
            yield command
        finally:
            command.kill()


def interrupted(command: subprocess.Popen[str]) -> tuple[float, str]:
    """How long the command took to end, and what it said."""
    began_at = time.monotonic()
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=10)
    assert out == ""
    return time.monotonic() - began_at, err


def test_a_push_to_a_slow_server_ends_when_it_is_interrupted(pets: Path, tmp_path: Path) -> None:
    with slow_server() as server, pushing(server.url, pets, tmp_path) as command:
        for _file in range(4):
            assert server.taking.acquire(timeout=30)
        took_s, said = interrupted(command)
        assert command.returncode == ExitCode.INTERRUPTED
        assert said == "Stopped. What has arrived is kept: the same command goes on from there.\n"
        assert took_s < SOON_S


def test_a_push_is_interrupted_while_it_waits_to_try_again(pets: Path, tmp_path: Path) -> None:
    with slow_server() as server:
        server.over.set()  # each upload is cut, and tried again after a pause
        with pushing(server.url, pets, tmp_path) as command:
            for _try in range(12):
                assert server.taking.acquire(timeout=30)
            took_s, said = interrupted(command)
    assert command.returncode == ExitCode.INTERRUPTED
    assert said.count("\n") == 1
    assert took_s < SOON_S


def test_a_push_is_interrupted_while_it_reads_what_there_is(tmp_path: Path) -> None:
    """A file without an end, as far as anybody waits for it."""
    folder = tmp_path / "pets"
    folder.mkdir()
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(2**40)
    with pushing("http://127.0.0.1:9", folder, tmp_path) as command:
        while str(folder / "huge.bin") not in opened_by(command.pid):
            assert command.poll() is None
            time.sleep(0.01)
        took_s, said = interrupted(command)
    assert command.returncode == ExitCode.INTERRUPTED
    assert said.count("\n") == 1
    assert took_s < SOON_S


def opened_by(pid: int) -> list[str]:
    opened = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            opened.append(os.readlink(one))
    return opened


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = Machine(tmp_path_factory.mktemp("machine"))
    started.started_info()
    yield started
    started.stop()


def test_the_next_push_goes_on_where_it_was(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    folder.mkdir()
    (folder / "big.bin").write_bytes(os.urandom(BIG_BYTES))
    url = str(machine.started_info()["url"])
    port = int(url.rpartition(":")[2])
    token = (machine.folder / "data" / "admin_token").read_text().strip()
    with Proxy(port) as proxy:
        proxy.delay(0.02)  # some 3 MB a second
        with pushing(proxy.url, folder, tmp_path, token) as command:
            while not any("PUT" in asked for asked in proxy.requests):
                assert command.poll() is None
                time.sleep(0.01)
            time.sleep(1.0)  # some of it is to arrive
            took_s, _said = interrupted(command)
    assert took_s < SOON_S
    with Api(ConnectionSettings(url, "a test", token, "a test", Choices(), "a test", [])) as api:
        sender = Sender(api, NO_PROGRESS)
        sender.send(read_folder(folder, NO_PROGRESS), "pets")
    assert 0 < sender.sent_bytes < BIG_BYTES
