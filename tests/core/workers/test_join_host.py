"""Which address another machine is told."""

import pytest

from simpletuner_fleet.core.workers.join_host import HowSure, join_host

ADDRESSES = ["10.0.0.5", "192.168.1.7", "fd00::5"]


@pytest.mark.parametrize("called", ["127.0.0.1", "localhost", "LOCALHOST.", "::1"])
def test_a_server_for_its_own_machine_says_so(called: str) -> None:
    to_join = join_host("127.0.0.1", called, ADDRESSES)
    assert (to_join.host, to_join.sure, to_join.others) == (called, HowSure.LOOPBACK, ())


def test_whoever_calls_from_elsewhere_knows_an_address_that_works() -> None:
    assert join_host("0.0.0.0", "head.example", ADDRESSES).host == "head.example"
    assert join_host("0.0.0.0", "head.example", ADDRESSES).sure is HowSure.CALLED


def test_called_from_its_own_machine_it_names_one_that_others_can_use() -> None:
    to_join = join_host("0.0.0.0", "localhost", ADDRESSES)
    assert (to_join.host, to_join.sure) == ("10.0.0.5", HowSure.GUESSED)
    assert to_join.others == ("192.168.1.7",), "no IPv6 where none is listened on"
    assert join_host("::", "localhost", ADDRESSES).others == ("192.168.1.7", "fd00::5")


def test_a_single_address_is_no_guess() -> None:
    assert join_host("0.0.0.0", "127.0.0.1", ["127.0.0.1", "10.0.0.5"]).sure is HowSure.CALLED
    assert join_host("10.0.0.9", "127.0.0.1", ADDRESSES).host == "10.0.0.9"


def test_without_any_address_nobody_else_comes_in() -> None:
    assert join_host("0.0.0.0", "localhost", ["127.0.0.1"]).sure is HowSure.LOOPBACK
