"""Which addresses an endpoint may have."""

import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.notices.checking import check_address, place_of, shown_address
from simpletuner_fleet.core.notices.endpoint import Channel

LONG = "a" * 63


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org",
        "https://example.org./hook?key=a..b",
        "https://example.org?key=1",
        f"https://{LONG}.{LONG}.{LONG}.org:8443/",
        "http://localhost:1/",
        "http://10.1.2.3/x",
        "https://[2606:4700::1111]/x",
        "https://[::ffff:1.1.1.1]:443/x",
        "https://under_score.example/x",
    ],
)
def test_hosts_that_can_be_looked_up_are_taken(address: str) -> None:
    assert check_address(Channel.WEBHOOK, address) == address


@pytest.mark.parametrize(
    "host",
    ["hooks..example.org", ".example.org", ".", f"a{LONG}.com", f"example.a{LONG}", f"{LONG}." * 4 + "a"],
)
def test_a_host_that_no_name_server_could_know_is_refused(host: str) -> None:
    with pytest.raises(Invalid, match="must be a URL"):
        check_address(Channel.SLACK, f"https://{host}/x")
    with pytest.raises(Invalid, match="tls://HOST"):
        check_address(Channel.SYSLOG, f"tls://{host}:6514")


def test_an_older_endpoint_with_such_a_host_is_still_read_and_shown_without_its_secret() -> None:
    address = "https://hooks..example.org/services/T0001/B0002/verysecretkey"
    assert place_of(address)[1] == "hooks..example.org"
    assert "verysecret" not in shown_address(Channel.SLACK, address)
