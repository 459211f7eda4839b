"""The same authority as for the receivers."""

import pytest

from tests.delivery.receivers import Certificates, certificates


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))
