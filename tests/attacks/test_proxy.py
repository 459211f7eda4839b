"""A stranger behind a proxy of ours: what the proxy strips from heads is sent after the body, as trailers."""

import re

import pytest

from simpletuner_fleet.http.access.limits import Rate, RateLimits
from simpletuner_fleet.http.edge.edge import EdgeSettings
from tests.http.api_kit import ADMIN, CPU_CONFIG, Running, orchestrator
from tests.http.edge_kit import raw_exchange

BEHIND_A_PROXY = EdgeSettings(trusted_proxies="127.0.0.1/32", worker_networks="10.0.0.0/8")


def with_trailers(method: str, path: str, head: str, body: bytes, trailers: str) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}"
        f"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{len(body):x}\r\n"
    ).encode() + (body + b"\r\n0\r\n" + trailers.encode() + b"\r\n")


async def statuses(running: Running, request: bytes) -> list[str]:
    answer = await raw_exchange(running.listening, request)
    return re.findall(r"HTTP/1.1 (\d+)", answer.decode())


@pytest.mark.parametrize(
    "trailer",
    [
        f"Authorization: Bearer {ADMIN}\r\n",
        "X-Forwarded-For: 10.1.2.3\r\n",
        "X-Worker-Token: wt_x\r\n",
        "Idempotency-Key: late\r\n",
        "X-Harmless: yes\r\n",
    ],
)
async def test_a_request_with_trailers_is_refused_whatever_they_say(trailer: str) -> None:
    async with orchestrator() as running:
        head = f"Authorization: Bearer {ADMIN}\r\n"
        request = with_trailers("PUT", "/api/configs/c", head, b'{"settings":{}}', trailer)
        assert await statuses(running, request) == ["400"]
        assert (await running.get("/api/configs"))["configs"] == []


async def test_a_credential_in_a_trailer_is_none() -> None:
    async with orchestrator() as running:
        body = b'{"settings":{}}'
        request = with_trailers("PUT", "/api/configs/c", "", body, f"Authorization: Bearer {ADMIN}\r\n")
        assert await statuses(running, request) == ["401"]
        assert (await running.get("/api/configs"))["configs"] == []


async def test_an_address_in_a_trailer_passes_no_network_and_is_in_no_audit_entry() -> None:
    async with orchestrator(settings=BEHIND_A_PROXY) as running:
        worker = await running.create_worker()
        head = f"X-Worker-Token: {worker['token']}\r\nX-Forwarded-For: 203.0.113.9\r\n"
        request = with_trailers(
            "POST", "/api/workers/register", head, b'{"name":"x"}', "X-Forwarded-For: 10.1.2.3\r\n"
        )
        assert await statuses(running, request) == ["403"]
        entries = (await running.get("/api/audit"))["entries"]
        assert "10.1.2.3" not in str(entries)


async def test_an_address_in_a_trailer_does_not_lift_the_limit_of_log_ins() -> None:
    limits = RateLimits(public=Rate(1e-9, 1e9))
    async with orchestrator(settings=EdgeSettings(trusted_proxies="127.0.0.1/32", limits=limits)) as running:
        seen = []
        for guess in range(40):
            body = b'{"name":"admin","password":"guess-%d-guess"}' % guess
            trailer = f"X-Forwarded-For: 10.0.{guess}.1\r\n"
            seen += await statuses(
                running,
                with_trailers("POST", "/api/login", "X-Forwarded-For: 203.0.113.9\r\n", body, trailer),
            )
        assert set(seen) == {"400"}, "no guess is even looked at"


async def test_a_chunked_body_without_trailers_is_taken() -> None:
    async with orchestrator() as running:
        head = f"Authorization: Bearer {ADMIN}\r\n"
        body = b'{"config": %s}' % str(CPU_CONFIG).replace("'", '"').encode()
        assert await statuses(running, with_trailers("POST", "/api/queue/submit", head, body, "")) == ["200"]
