"""A server for other machines that was told nothing about TLS: one port, TLS for all, plain HTTP for its own machine."""

import os
import shlex
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.http.network_calls import at, cli, network_address, whoami
from tests.http.server_process import server_process

pytestmark = pytest.mark.e2e
FOR_OTHERS = ("--no-local", "--host", "0.0.0.0")
address = pytest.fixture(network_address, name="address")


def test_tls_is_answered_to_everybody_with_the_authority_that_is_printed(
    tmp_path: Path, address: str
) -> None:
    home = tmp_path / "home"
    with server_process(home, *FOR_OTHERS) as server:
        trusted = ssl.create_default_context(cafile=str(home / "tls" / "ca.pem"))
        for host in (address, "127.0.0.1", "localhost"):
            answer = whoami(server, at(server, host, "https"), trusted)
            assert answer.json()["name"] == "admin", host
            assert "strict-transport-security" not in answer.headers, (
                "http://localhost would be lost for ever"
            )
        assert "sha256:" in server.log.read_text()


def test_the_line_that_joins_a_worker_is_tls_and_pinned_and_works(tmp_path: Path, address: str) -> None:
    with server_process(tmp_path / "home", *FOR_OTHERS) as server, server.client() as http:
        created = http.post("/api/admin/workers", json={"name": "gpu-1"}).json()
        words = shlex.split(created["connection_command"])
        url = words[words.index("--orchestrator-url") + 1]
        assert urlsplit(url).scheme == "https"
        offered = [url, *created["address"]["others"]]
        assert at(server, address, "https") in offered, "an address that another machine can use"
        assert not any("127.0.0.1" in one or "localhost" in one for one in offered)
        words[words.index(url)] = at(server, address, "https")
        checked = cli(tmp_path / "other", *words[1:], "--check")
        assert checked.returncode == 0, checked.stderr
        assert "certificate trusted" in checked.stdout


def test_plain_http_on_the_network_is_there_for_whoever_asks_for_it_by_name(
    tmp_path: Path, address: str
) -> None:
    with server_process(tmp_path / "home", *FOR_OTHERS, "--plain-http") as server:
        assert whoami(server, at(server, address)).status_code == 200
        with server.client() as http:
            http.headers["Host"] = urlsplit(at(server, address)).netloc
            created = http.post("/api/admin/workers", json={"name": "gpu-1"}).json()
        words = shlex.split(created["connection_command"])
        assert "--plain-http" in words
        checked = cli(tmp_path / "other", *words[1:], "--check")
        assert checked.returncode == 0, checked.stderr
        assert "WARNING: --plain-http" in checked.stderr
        assert "unencrypted" in server.log.read_text()


def test_a_trusted_proxy_may_speak_plain_http_and_nobody_else(tmp_path: Path, address: str) -> None:
    with server_process(tmp_path / "home", *FOR_OTHERS, "--trusted-proxies", address) as server:
        assert whoami(server, at(server, address)).status_code == 200
    with server_process(tmp_path / "home", *FOR_OTHERS, "--trusted-proxies", "198.51.100.7") as server:
        assert whoami(server, at(server, address)).status_code == 426


def test_with_ssl_there_is_no_plain_http_at_all(tmp_path: Path) -> None:
    with server_process(tmp_path / "home", *FOR_OTHERS, "--ssl") as server:
        assert server.url.startswith("https:")
        with pytest.raises(httpx2.TransportError):
            whoami(server, server.url.replace("https:", "http:"))


def test_whoever_connects_and_says_nothing_or_nonsense_harms_nobody(tmp_path: Path, address: str) -> None:
    with server_process(tmp_path / "home", *FOR_OTHERS) as server:
        port = urlsplit(server.url).port or 0
        silent = [socket.create_connection((address, port), 5) for _ in range(50)]
        for one in silent[:10]:
            one.sendall(b"\x16" + os.urandom(200))
        for one in silent[10:20]:
            one.sendall(b"\x00" * 100_000)
        for one in silent[20:30]:
            one.close()
        assert whoami(server, server.url).status_code == 200
        for one in silent:
            one.close()
        assert server.stop() < 3
        assert "Traceback" not in server.log.read_text()
