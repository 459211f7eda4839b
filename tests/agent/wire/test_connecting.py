"""A worker whose orchestrator is down when it is started."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import to_builtins

from devtools.ports import free_port
from simpletuner_fleet.agent.guard import shim_report
from simpletuner_fleet.agent.wire.connecting import PINNED, client_for, keeper, shim_trust
from simpletuner_fleet.agent.wire.errors import Unreachable
from simpletuner_fleet.client.trust import Choices, TrustError
from tests.agent.shim_fixtures import Reports, listening, report_to
from tests.client.test_trust import make

ANSWER = b'{"has_jobs":false,"name":"gpu-1"}'


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(EOFError, ConnectionError):  # who wants the certificate alone asks for nothing
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER
        )
    writer.close()


async def test_a_worker_that_pins_a_certificate_starts_while_nobody_can_show_it(tmp_path: Path) -> None:
    """It takes up what runs on its machine meanwhile, and believes whoever comes no more for that."""
    port, leaf = free_port(), make("orchestrator")
    tls = Choices(fingerprint=leaf.pin)
    url = f"https://127.0.0.1:{port}"
    client = await client_for([url], tls, lambda: "t", keeper(tmp_path))
    with pytest.raises(Unreachable) as down:
        await client.ask()
    assert down.value.refused
    other = Choices(fingerprint=make("another").pin)
    deceived = await client_for([url], other, lambda: "t")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*leaf.files(tmp_path, "leaf"))
    try:
        async with await asyncio.start_server(answer, "127.0.0.1", port, ssl=context):
            assert await client.ask() == "gpu-1"
            with pytest.raises(Unreachable, match="does not match the pinned one"):
                await deceived.ask()
            with pytest.raises(TrustError):
                await client_for([url], other, lambda: "t")
    finally:
        await client.close()
        await deceived.close()
    assert shim_trust(tls, tmp_path).pinned_certfile == str(tmp_path / PINNED)
    assert (tmp_path / PINNED).exists()


async def test_a_shim_trusts_the_certificate_that_its_worker_pins_though_it_is_no_authoritys(
    tmp_path: Path,
) -> None:
    own, reports = make("orchestrator"), Reports()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*own.files(tmp_path, "own"))
    tls = Choices(fingerprint=own.pin)
    with listening(reports, context) as url:
        client = await client_for([url], tls, lambda: "t", keeper(tmp_path))
        await client.close()
        to = report_to(url, pinned_certfile=shim_trust(tls, tmp_path).pinned_certfile)
        status, _ = shim_report.post(to_builtins(to), {"status": "failed"})
    assert status == 200
    assert len(reports.seen) == 1


def test_a_shim_finds_the_authority_that_its_worker_was_given_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shim_trust(Choices(ca_cert="tls/ca.pem"), tmp_path).cafile == str(tmp_path / "tls" / "ca.pem")
    assert shim_trust(Choices(), tmp_path).cafile is None


def test_a_shim_verifies_whom_its_worker_verifies(tmp_path: Path) -> None:
    assert shim_trust(Choices(no_verify=True), tmp_path).no_verify
    assert not shim_trust(Choices(ca_cert="/tls/ca.pem", no_verify=True), tmp_path).no_verify
