"""Addresses and rates, without a network and without waiting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import TooManyRequests
from simpletuner_fleet.http.access.hosts import AllowedHosts, host_name, own_origin
from simpletuner_fleet.http.access.limits import Buckets, Rate, address_key
from simpletuner_fleet.http.access.networks import (
    BadNetwork,
    Networks,
    client_address,
    is_loopback,
    machine_addresses,
    machine_names,
)

PROXIES = Networks.parse("10.0.0.0/8 fd00::/8")


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", "8.8.8.8", "192.0.2.1"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "8.8.8.8", "8.8.8.8"),
        ("10.0.0.1", "6.6.6.6, 8.8.8.8", "8.8.8.8"),
        ("10.0.0.1", "6.6.6.6, 8.8.8.8, 10.0.0.2", "8.8.8.8"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "8.8.8.8:4711", "8.8.8.8"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "::ffff:8.8.8.8", "8.8.8.8"),
        ("::ffff:10.0.0.1", "8.8.8.8", "8.8.8.8"),
        ("fd00::1", "8.8.8.8", "8.8.8.8"),
        ("10.0.0.1", "8.8.8.8, garbage, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", ",,,", "10.0.0.1"),
        ("", "8.8.8.8", ""),
    ],
)
def test_the_client_is_the_rightmost_hop_that_is_not_our_proxy(
    peer: str, forwarded: str | None, expected: str
) -> None:
    assert client_address(peer, forwarded, PROXIES) == expected


@given(st.text(max_size=200))
def test_no_forwarded_header_breaks_anything_or_is_believed_from_strangers(text: str) -> None:
    assert client_address("192.0.2.1", text, PROXIES) == "192.0.2.1"
    assert client_address("10.0.0.1", text, PROXIES)


@given(st.text(max_size=80))
def test_no_host_header_breaks_anything(text: str) -> None:
    hosts = AllowedHosts()
    if hosts.holds(text):
        name = host_name(text)
        assert name
        assert name == "localhost" or is_loopback(name) or name in {*machine_names(), *machine_addresses()}


@pytest.mark.parametrize(
    "written", ["Bücher.example", "bücher.example.", "xn--bcher-kva.example", "\uff42ücher\u3002example"]
)
def test_an_allowed_host_is_known_by_the_name_that_browsers_send(written: str) -> None:
    hosts = AllowedHosts([written])
    assert hosts.holds("xn--bcher-kva.example:8001")
    assert own_origin("https://xn--bcher-kva.example", "127.0.0.1:8001", hosts)
    assert not hosts.holds("bucher.example")


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("straße.example", "xn--strae-oqa.example"),
        ("FAẞ.example", "xn--fa-hia.example"),
        ("βόλος.example", "xn--nxasmm1c.example"),
        ("ΒΌΛΟΣ.example", "xn--nxasmq6b.example"),
        ("☕.example", "xn--53h.example"),
    ],
)
def test_an_allowed_host_is_known_also_where_older_rules_spell_it_otherwise(written: str, sent: str) -> None:
    hosts = AllowedHosts([written])
    assert hosts.holds(sent)
    assert not hosts.holds("strasse.example")


def test_an_allowed_host_that_is_no_name_allows_nothing() -> None:
    assert not AllowedHosts(["ü..example", "ü" * 70]).holds("example")


def test_networks_hold_addresses_of_both_families_and_mapped_ones() -> None:
    networks = Networks.parse("10.0.0.0/8,fd00::/8, 192.0.2.7 ::ffff:203.0.113.0/120")
    inside = ["10.255.0.1", "::ffff:10.0.0.1", "fd12::1", "fd12::1%eth0", "192.0.2.7", "203.0.113.9"]
    assert all(networks.holds(address) for address in inside)
    outside = ["11.0.0.1", "fe80::1", "192.0.2.8", "", "localhost", "::ffff:11.0.0.1", "10.0.0.1.evil"]
    assert not any(networks.holds(address) for address in outside)
    assert not Networks.parse("")


@pytest.mark.parametrize("text", ["10.0.0.0/33", "lan", "10.0.0", "10.0.0.0/8;11.0.0.0/8"])
def test_a_network_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadNetwork, match="is not a network"):
        Networks.parse(text)


def test_the_machine_knows_its_own_names_and_addresses() -> None:
    assert machine_names()
    assert {"127.0.0.1", "::1"} <= set(machine_addresses())


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    clock = [0.0]
    buckets = Buckets(Rate(per_s=2, burst=3), lambda: clock[0])
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    clock[0] += 0.5
    assert buckets.take("a") == 0
    assert buckets.take("a") == 0.5
    clock[0] += 1000
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    with pytest.raises(TooManyRequests):
        buckets.spend("a")


def test_asking_while_empty_costs_nothing() -> None:
    clock = [0.0]
    buckets = Buckets(Rate(per_s=1, burst=1), lambda: clock[0])
    buckets.take("a")
    for _ in range(100):
        assert buckets.take("a")
    clock[0] += 1
    assert buckets.take("a") == 0


def test_buckets_are_bounded_and_keep_the_ones_in_use() -> None:
    buckets = Buckets(Rate(per_s=0.001, burst=1), lambda: 0.0, max_keys=10)
    buckets.take("busy")
    for number in range(1000):
        buckets.take(str(number))
        assert buckets.take("busy")
    assert len(buckets) == 10


def test_one_ipv6_customer_is_one_key() -> None:
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:1")
    assert address_key("2001:db8::1") != address_key("2001:db8:0:1::1")
    assert address_key("192.0.2.1") != address_key("192.0.2.2")
    assert address_key("nonsense") == "nonsense"
