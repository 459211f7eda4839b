"""Whoever gives up on a transfer leaves no thread behind that goes on with it."""

import asyncio
import hashlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from simpletuner_fleet.client import AsyncFleet, Fleet
from simpletuner_fleet.client.interruption import Interrupted, Interrupter, pause, side_by_side
from tests.client.slow_server import SlowServer, slow_server
from tests.client.test_trust import make
from tests.quiet_server import QuietServer

SOON_S = 2.0
BIG_BYTES = 8 * 2**20


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    folder.mkdir()
    for at in range(6):
        (folder / f"{at}.bin").write_bytes(os.urandom(BIG_BYTES))
    return folder


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Threads that asyncio keeps for the next one may stay."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + SOON_S
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio_"):
            thread.join(max(0.0, until - time.monotonic()))
            assert not thread.is_alive(), thread


async def has_begun(server: SlowServer, uploads: int) -> None:
    for _upload in range(uploads):
        assert await asyncio.to_thread(server.taking.acquire, timeout=30)


async def has_gone(server: SlowServer, uploads: int) -> None:
    """The server sees that each upload was given up."""
    server.looking.set()
    for _upload in range(uploads):
        assert await asyncio.to_thread(server.left.acquire, timeout=SOON_S)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_push_that_is_cancelled_ends(pets: Path, tmp_path: Path, *, tls: bool) -> None:
    certificate, key = make("127.0.0.1").files(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with slow_server(context if tls else None) as server:
        async with AsyncFleet(server.url, "st_x", ca_cert=certificate) as fleet:
            with nothing_left_behind():
                pushing = asyncio.create_task(fleet.push_dataset(pets))
                await has_begun(server, 4)
                began_at = time.monotonic()
                pushing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await pushing
                assert time.monotonic() - began_at < SOON_S
                await has_gone(server, 4)


async def test_one_push_that_is_cancelled_leaves_another_alone(pets: Path) -> None:
    with slow_server() as server:
        async with AsyncFleet(server.url, "st_x") as fleet:
            first, second = (asyncio.create_task(fleet.push_dataset(pets)) for _push in range(2))
            await has_begun(server, 8)
            first.cancel()
            await asyncio.wait([first])
            await has_gone(server, 4)
            assert not server.left.acquire(timeout=0.3)
            assert not second.done()
            second.cancel()
            await asyncio.wait([second])


def test_a_push_of_a_program_that_is_interrupted_ends(pets: Path) -> None:
    """As by Ctrl-C in a notebook, which goes on afterwards."""
    with slow_server() as server, Fleet(server.url, "st_x") as fleet, nothing_left_behind():

        def press() -> None:
            for _upload in range(4):
                assert server.taking.acquire(timeout=30)
            os.kill(os.getpid(), signal.SIGINT)

        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            fleet.push_dataset(pets)
        pressing.join()
        server.looking.set()
        for _upload in range(4):
            assert server.left.acquire(timeout=SOON_S)


CONTENT = b"x" * BIG_BYTES


class Dripping(BaseHTTPRequestHandler):
    """Has one artifact, and sends a little of it now and then."""

    over = threading.Event()
    sending = threading.Event()
    gone = threading.Event()

    def do_GET(self) -> None:
        file = {"path": "model", "size": BIG_BYTES, "sha256": hashlib.sha256(CONTENT).hexdigest()}
        manifest = {
            "id": "m_1",
            "kind": "artifact",
            "name": "out",
            "step": None,
            "attempt": 1,
            "worker_name": "gpu-1",
            "created_at": None,
            "total_bytes": BIG_BYTES,
            "files": [file],
        }
        is_list = self.path.endswith("/artifacts")
        body = json.dumps({"manifests": [manifest]}).encode() if is_list else CONTENT
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if is_list else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if is_list:
            self.wfile.write(body)
            return
        try:
            while not self.over.wait(0.05):
                self.wfile.write(b"x" * 1024)
                self.sending.set()
        finally:
            self.gone.set()

    def log_message(self, format: str, *args: object) -> None:
        pass


async def test_a_download_that_is_cancelled_ends_and_its_part_stays(tmp_path: Path) -> None:
    server = QuietServer(("127.0.0.1", 0), Dripping)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        async with AsyncFleet(f"http://127.0.0.1:{server.server_port}", "st_x") as fleet:
            with nothing_left_behind():
                downloading = asyncio.create_task(fleet.download("j_1", tmp_path / "out"))
                assert await asyncio.to_thread(Dripping.sending.wait, 30)
                downloading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await downloading
                assert await asyncio.to_thread(Dripping.gone.wait, SOON_S)
        assert (tmp_path / "out" / "out" / "model.part").exists()
    finally:
        Dripping.over.set()
        server.shutdown()
        server.server_close()
        serving.join()


def test_what_is_done_side_by_side_comes_in_its_order() -> None:
    assert side_by_side(lambda number: number * 2, range(1000), 4) == list(range(0, 2000, 2))
    assert side_by_side(str, [], 4) == []


def test_the_first_error_ends_all_that_is_done_beside_it() -> None:
    def act(number: int) -> None:
        if number == 3:
            raise ValueError("three")
        pause(60.0)

    with nothing_left_behind(), pytest.raises(ValueError, match="three"):
        side_by_side(act, range(1000), 4)


def test_what_was_ended_before_it_began_does_nothing() -> None:
    interruption = Interrupter()
    interruption.end()
    with pytest.raises(Interrupted), interruption.begun():
        pytest.fail("it has begun")


NOT_WOKEN = """
import os, signal, threading, time
from simpletuner_fleet.client.interruption import side_by_side

begun, heard_by_another = threading.Event(), threading.Thread(target=time.sleep, args=(60,), daemon=True)
heard_by_another.start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # so that it does not wake the thread that waits
threading.Thread(target=lambda: (begun.wait(), time.sleep(0.2), os.kill(os.getpid(), signal.SIGINT))).start()
try:
    side_by_side(lambda thing: (begun.set(), time.sleep(60)), [1], 1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interruption_that_wakes_nobody_is_noticed_all_the_same() -> None:
    """As where it comes after the last look for it, and before the wait begins."""
    ran = subprocess.run([sys.executable, "-c", NOT_WOKEN], capture_output=True, text=True, timeout=10)
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "")
