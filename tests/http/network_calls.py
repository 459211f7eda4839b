"""Calls of a server by the way that other machines take, and commands as they are typed."""

import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from simpletuner_fleet.http.access.networks import is_loopback, machine_addresses
from tests.http.server_process import ServerProcess, environment


def network_address() -> str:
    """Connected to by it, this machine looks to itself like any other."""
    others = [one for one in machine_addresses() if not is_loopback(one) and ":" not in one]
    if not others:
        pytest.skip("this machine has no address but loopback")
    return others[0]


def at(server: ServerProcess, address: str, scheme: str = "http") -> str:
    return f"{scheme}://{address}:{urlsplit(server.url).port}"


def whoami(server: ServerProcess, url: str, verify: ssl.SSLContext | bool = True) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {server.admin_token}"}
    return httpx2.get(f"{url}/api/whoami", headers=headers, verify=verify, trust_env=False, timeout=10)


def cli(home: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "simpletuner_fleet.cli.main", *words],
        env={**environment(home), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
