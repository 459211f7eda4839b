"""An S3 of our own: moto's server, from its wheel, with one empty bucket."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

KEY, SECRET = "an-access-key", "a-secret-of-tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
BUCKET, REGION = "bucket", "us-east-1"
PROGRAM = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def running_s3() -> Iterator[str]:
    """Yields its endpoint. The server chooses its port and tells it once it listens, however long it takes to start."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout
        port = server.stdout.readline().strip()
        assert port, "the S3 server ended before it listened"
        endpoint = f"http://127.0.0.1:{port}"
        try:
            httpx2.put(f"{endpoint}/{BUCKET}", trust_env=False, timeout=60).raise_for_status()
            yield endpoint
        finally:
            server.terminate()
