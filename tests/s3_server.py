"""An S3 of our own: moto's server, from its wheel, with one empty bucket."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

KEY, SECRET = "an-access-key", "a-secret-of-tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
BUCKET = "bucket"
PATIENCE_S = 20.0


@contextmanager
def running_s3() -> Iterator[str]:
    """Its endpoint."""
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
            httpx2.put(f"{endpoint}/{BUCKET}", trust_env=False).raise_for_status()
        except httpx2.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
