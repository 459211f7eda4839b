"""Whom the server calls: nobody within, whatever a name says, whenever it says it."""

import asyncio
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import pytest

from simpletuner_fleet.core.notices.checking import MAX_OF_ONE_OWNER
from simpletuner_fleet.delivery.http_post import post
from simpletuner_fleet.delivery.outbound import OutboundConnector, is_public
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from tests.delivery.conftest import LOOPBACK
from tests.delivery.receivers import Certificates, Hook, MailServer, hook, listening, until


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:10.0.0.1"),
        *("64:ff9b::a00:1", "64:ff9b::7f00:1", "2002:0a00:0001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
        *("192.0.2.1", "198.18.0.1", "240.0.0.1", "192.0.0.192", "192.88.99.1", "100.100.100.200"),
        *("fec0::1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::a00:1", "5f00::1", "3fff::1"),
    ],
)
def test_addresses_that_are_not_for_everybody_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_addresses_of_the_whole_world_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f000001", "017700000001", "127.1", "0"]
)
async def test_this_machine_is_not_called_however_it_is_written(strict: OutboundConnector, host: str) -> None:
    reached = Hook()
    async with listening(reached.serve) as port:
        for scheme in ("https", "http"):
            with pytest.raises(DeliveryFailed):
                await post(strict, f"{scheme}://{host}:{port}/", b"{}", {}, 0.0)
    assert reached.got == []


async def test_a_name_that_means_another_machine_a_moment_later_gains_nothing(certs: Certificates) -> None:
    """The first answer is public and nobody is there; who asked twice would come to this machine."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["192.31.196.1"] if len(asked) == 1 else ["127.0.0.1"]

    outbound = OutboundConnector((), certs.ca, rebinding)
    async with hook(certs.context) as inside:
        with pytest.raises(DeliveryFailed):
            await post(outbound, inside.url, b"{}", {}, 0.0, timeout_s=0.3)
        assert (asked, inside.got) == (["localhost"], [])
        with pytest.raises(DeliveryFailed, match="private"):
            await post(outbound, inside.url, b"{}", {}, 0.0)
        assert inside.got == []
    outbound.close()


async def test_a_name_with_one_private_address_among_others_is_refused(certs: Certificates) -> None:
    async def mixed(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "10.0.0.1"]

    outbound = OutboundConnector((), certs.ca, mixed)
    with pytest.raises(DeliveryFailed, match="private"):
        await post(outbound, "https://example.org/", b"{}", {}, 0.0)
    outbound.close()


async def test_without_tls_only_named_networks_are_called(certs: Certificates) -> None:
    async def public(host: str, port: int) -> list[str]:
        return ["1.1.1.1"]

    outbound = OutboundConnector(LOOPBACK, certs.ca, public)
    with pytest.raises(DeliveryFailed, match="Without TLS"):
        await post(outbound, "http://example.org/", b"{}", {}, 0.0)
    outbound.close()


async def test_a_certificate_that_nobody_vouches_for_gets_nothing(certs: Certificates) -> None:
    distrustful = OutboundConnector(LOOPBACK)
    async with hook(certs.context) as receiver:
        with pytest.raises(DeliveryFailed, match="certificate"):
            await post(distrustful, receiver.url, b"{}", {}, 0.0)
        outbound = OutboundConnector(LOOPBACK, certs.ca, lambda host, port: asyncio.sleep(0, ["127.0.0.1"]))
        with pytest.raises(DeliveryFailed):
            await post(outbound, receiver.url.replace("localhost", "other.example"), b"{}", {}, 0.0)
        assert receiver.got == []


@pytest.mark.parametrize("host", ["a..b", ".example.org", "a" * 64 + ".com"])
async def test_what_is_no_name_cannot_be_resolved(strict: OutboundConnector, host: str) -> None:
    with pytest.raises(DeliveryFailed, match="cannot be resolved") as refused:
        await strict.connect(host, 443, tls=True)
    assert not refused.value.hopeless
    with pytest.raises(DeliveryFailed, match=r"The mail server cannot be reached: UnicodeError\."):
        await strict.open_relay(host, 25, tls=False)


async def test_names_that_nobody_resolves_hold_up_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One person has twenty endpoints, and a name server of their own that does not answer."""
    over, asked, real = threading.Event(), Counter[str](), socket.getaddrinfo

    def slow(host: str, *more: object, **named: object) -> object:
        asked[host] += 1
        if host.startswith("slow"):
            over.wait(10)
            raise OSError("nobody answers")
        return real("127.0.0.1", *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    outbound = OutboundConnector(LOOPBACK)
    names = [f"slow{number}.example.org" for number in range(MAX_OF_ONE_OWNER)]
    stuck = [asyncio.create_task(outbound.allowed_address(name, 443, tls=True)) for name in (*names, *names)]
    try:
        await asyncio.sleep(0.2)
        async with asyncio.timeout(2):
            assert await outbound.allowed_address("well.example.org", 443, tls=True) == ip_address(
                "127.0.0.1"
            )
        stuck[0].cancel()
        await asyncio.sleep(0)
        again = asyncio.create_task(outbound.allowed_address(names[0], 443, tls=True))
        await asyncio.sleep(0.1)
        assert set(asked.values()) == {1}, "who tries a name again joins the look-up that is under way"
    finally:
        over.set()
    ends = await asyncio.gather(*stuck[1:], again, return_exceptions=True)
    assert {str(end) for end in ends} == {"Its name cannot be resolved."}
    await asyncio.sleep(0)
    assert asked["slow0.example.org"] == 1
    with pytest.raises(DeliveryFailed):
        await outbound.allowed_address("slow0.example.org", 443, tls=True)
    assert asked["slow0.example.org"] == 2, "what was found is not kept"
    outbound.close()


async def test_the_mail_servers_name_that_nobody_resolves_keeps_no_thread_of_the_servers_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In those threads the storage works: mails that wait for a name server must not hold it up."""
    over, asked = threading.Event(), threading.Event()

    def slow(*more: object, **named: object) -> object:
        asked.set()
        over.wait(10)
        raise OSError("nobody answers")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    outbound = OutboundConnector()
    stuck = asyncio.create_task(outbound.open_relay("mail.example.org", 25, tls=False))
    try:
        await until(asked.is_set)
        async with asyncio.timeout(5):
            await asyncio.to_thread(lambda: None)
    finally:
        over.set()
    with pytest.raises(DeliveryFailed, match="cannot be reached"):
        await stuck
    outbound.close()


async def test_a_mail_server_is_reached_at_whichever_of_its_addresses_answers() -> None:
    async def several(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    server = MailServer()
    async with listening(server.serve) as port:
        outbound = OutboundConnector(resolve=several)
        reader, writer = await outbound.open_relay("mail.example.org", port, tls=False)
        assert (await reader.readline()).startswith(b"220")
        writer.transport.abort()
        outbound.close()
