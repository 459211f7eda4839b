"""A stranger with a line to the server and time to guess; and one who answers in the server's place."""

import asyncio
import contextlib
import json
import shlex
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.agent.wire.call_connections import MAX_PROBLEM_BYTES
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Unreachable
from simpletuner_fleet.core.errors import Invalid, TooManyRequests
from simpletuner_fleet.core.people.accounts import checked_password
from simpletuner_fleet.http.api.admin.connection_commands import connection_commands
from simpletuner_fleet.http.api.deps import LOGINS_PER_NAME, LOGINS_PER_NAME_IN_ALL, LoginDoor
from tests.core.builders import a_worker
from tests.http.api_kit import orchestrator
from tests.http.network_calls import at, cli, network_address, whoami
from tests.http.server_process import server_process

COMMON = [
    "password12",
    "Password123",
    "P@ssw0rd123!",
    "passw0rd2024",
    "qwertyuiop",
    "1234567890",
    "0987654321",
    "qwerty12345",
    "iloveyou123",
    "letmein2024",
    "administrator",
    "admin123456",
    "Welcome2024!",
    "welcome12345",
    "abcdefghij",
    "1q2w3e4r5t",
    "1qaz2wsx3edc",
    "monkey12345",
    "football2023",
    "abcabcabcabc",
    "1111111111111",
    "simpletuner1",
    "changeme123",
    "alice123456",
    "Summer2024!!",
    "superman123",
    "princess1234",
]


@pytest.mark.parametrize("password", COMMON)
def test_passwords_that_are_tried_first_are_refused(password: str) -> None:
    with pytest.raises(Invalid, match="too easy"):
        checked_password(password, "alice")


@pytest.mark.parametrize(
    "password",
    [
        "correct horse battery",
        "mein-Fahrrad-ist-grün",
        "xK9#vL2pQ8wn",
        "日本語の長い合言葉です",
        "plum kettle 7 fog",
    ],
)
def test_passwords_of_ones_own_are_taken(password: str) -> None:
    assert checked_password(password, "alice")


class Ticks:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def guesses(door: LoginDoor, ip: str, name: str, times: int) -> int:
    """Returns how many of them were let through to be looked at."""
    through = 0
    for _ in range(times):
        try:
            door.knock(ip, name)
        except TooManyRequests:
            continue
        through += 1
    return through


def test_guessing_at_a_name_is_slow_from_one_address_and_from_many() -> None:
    door = LoginDoor(Ticks())
    assert guesses(door, "203.0.113.1", "admin", 100) == LOGINS_PER_NAME.burst
    from_many = sum(guesses(door, f"198.51.{at}.1", "admin", 5) for at in range(100))
    assert from_many <= LOGINS_PER_NAME_IN_ALL.burst


def test_nobody_is_locked_out_by_others_who_guess_at_their_name() -> None:
    door = LoginDoor(Ticks())
    door.knock("192.0.2.7", "Admin")
    door.welcome("192.0.2.7", "Admin")
    sum(guesses(door, f"198.51.{at}.1", "admin", 50) for at in range(100))
    door.knock("192.0.2.7", "admin")
    with pytest.raises(TooManyRequests):
        door.knock("192.0.2.8", "admin")


def test_no_line_that_is_pasted_has_the_token_among_the_arguments() -> None:
    token = "wt_" + "A" * 49
    commands = connection_commands(a_worker(), token, "https://fleet.example", "sha256:ab")
    for line in (commands.uv, commands.pip):
        words = shlex.split(line.replace("\\\n", " "))
        holding = [word for word in words if token in word]
        assert holding == [f"SIMPLETUNER_WORKER_TOKEN={token}"]
        at = words.index(holding[0])
        assert at == 0 or words[at - 1] == "&&", "an assignment stands before its command"


@asynccontextmanager
async def endless(status: int) -> AsyncIterator[str]:
    """Whoever has the address of the orchestrator, and answers with gigabytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 100000000000\r\n\r\n" % status)
            while True:
                writer.write(bytes(1024 * 1024))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def streamed(client: OrchestratorClient) -> None:
    async with client.stream("/api/workers/stream", "", lambda: 5.0):
        pass


async def fetched(client: OrchestratorClient) -> None:
    async with client.fetch_object("j", "0" * 64, 0):
        pass


@pytest.mark.parametrize("call", [streamed, fetched, OrchestratorClient.ask])
async def test_an_answer_without_end_is_read_no_further_than_an_answer_may_be(
    call: Callable[[OrchestratorClient], Awaitable[None]],
) -> None:
    async with endless(500) as url:
        client = OrchestratorClient(url, lambda: "wt_x", None)
        tracemalloc.start()
        try:
            with pytest.raises(Unreachable):
                await asyncio.wait_for(call(client), 30)
            assert tracemalloc.get_traced_memory()[1] < 16 * MAX_PROBLEM_BYTES
        finally:
            tracemalloc.stop()
            await client.close()


async def test_every_reference_of_the_api_document_leads_somewhere() -> None:
    async with orchestrator() as running:
        document = await running.get("/openapi.json")

    def walk(value: object) -> None:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                target: object = document
                for step in reference.removeprefix("#/").split("/"):
                    assert isinstance(target, dict), reference
                    assert step in target, reference
                    target = target[step]
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(document)


def settled_size(log: Path) -> int:
    """What the server says of its start is written by then."""
    size = -1
    while size != log.stat().st_size:
        size = log.stat().st_size
        time.sleep(1.0)
    return size


@pytest.mark.e2e
@pytest.mark.parametrize("tls", [(), ("--ssl",), ("--host", "0.0.0.0")], ids=["plain", "tls", "both"])
def test_what_is_no_request_is_refused_in_our_own_format_and_leaves_no_line_in_the_log(
    tmp_path: Path, tls: tuple[str, ...]
) -> None:
    noise = (b"\x16\x03\x01 garbage", b"GET / HTTP/9.9\r\n\r\n", bytes(50), b"NONSENSE\r\n\r\n")
    with server_process(tmp_path / "home", "--no-local", *tls) as server:
        port = int(server.url.rpartition(":")[2])
        before = settled_size(server.log)
        answers = set()
        for turn in range(80):
            with socket.create_connection(("127.0.0.1", port)) as line, contextlib.suppress(OSError):
                line.settimeout(0.2)
                line.sendall(noise[turn % len(noise)])
                answers.add(line.recv(4096))
        in_http = [answer for answer in answers if answer.startswith(b"HTTP/1.1 ")]
        assert in_http or tls
        for answer in in_http:
            assert b"\r\ncontent-type: application/problem+json\r\n" in answer
            problem = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert (problem["status"], problem["code"]) == (400, "unreadable_request")
        assert server.log.stat().st_size == before, server.log.read_bytes()[before:][-2000:]


@pytest.mark.e2e
def test_plain_http_is_answered_on_this_machine_and_refused_to_others(tmp_path: Path) -> None:
    address = network_address()
    with server_process(tmp_path / "home", "--no-local", "--host", "0.0.0.0") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert whoami(server, server.url).json()["name"] == "admin"
        refused = whoami(server, at(server, address))
        assert refused.status_code == 426
        assert refused.json()["code"] == "plain_http_refused"
        assert "https://" in refused.json()["next"]


def test_a_worker_or_a_command_sends_no_token_in_the_clear_unless_asked_to_by_name(
    tmp_path: Path,
) -> None:
    """Told by a listener that would show what arrived."""
    address = network_address()
    with socket.create_server((address, 0)) as listener:
        url = f"http://{address}:{listener.getsockname()[1]}"
        token = {"SIMPLETUNER_API_TOKEN": "st_" + "x" * 43}
        refused = cli(tmp_path, "workers", "list", "--url", url, **token)
        assert refused.returncode == 10
        assert "E_PLAIN_HTTP" in refused.stderr
        assert "--plain-http" in refused.stderr
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()
