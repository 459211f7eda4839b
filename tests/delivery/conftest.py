"""One authority for all receivers."""

from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from simpletuner_fleet.delivery.outbound import OutboundConnector
from tests.delivery.receivers import Certificates, certificates

LOOPBACK = [ip_network("127.0.0.0/8"), ip_network("::1/128")]


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def outbound(certs: Certificates) -> Iterator[OutboundConnector]:
    """May call this machine."""
    made = OutboundConnector(LOOPBACK, certs.ca)
    yield made
    made.close()


@pytest.fixture
def strict(certs: Certificates) -> Iterator[OutboundConnector]:
    """May call public machines alone."""
    made = OutboundConnector((), certs.ca)
    yield made
    made.close()
