"""Every promise is tested in all three homes; S3 is moto's server, from its wheel."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.blobs.opening import open_blobs
from simpletuner_fleet.ports import Blobs

KEY, SECRET = "an-access-key", "a-secret-of-tests"
PATIENCE_S = 20.0


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _make_bucket(endpoint)
        yield endpoint
    finally:
        server.terminate()
        server.wait(10)


def _make_bucket(endpoint: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            httpx2.put(f"{endpoint}/bucket", trust_env=False).raise_for_status()
        except httpx2.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@pytest.fixture(params=["memory", "folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    match request.param:
        case "memory":
            return MemoryBlobs()
        case "folder":
            return FolderBlobs(tmp_path / "blobs")
        case _:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            endpoint = request.getfixturevalue("s3_endpoint")
            return open_blobs(f"s3://bucket/{tmp_path.name}?endpoint={endpoint}", tmp_path / "staging")
