"""Requests to a provider of sign-in, or to a directory."""

import pytest

from simpletuner_fleet.core.errors import ProviderUnusable
from simpletuner_fleet.core.people.sign_in.directories import Directory
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.orchestrator.sign_in.asking import Asker
from simpletuner_fleet.orchestrator.sign_in.directory import AskedDirectory

NO_NAMES = pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".com"])


@NO_NAMES
async def test_a_provider_whose_host_is_no_name_is_unusable(host: str) -> None:
    outbound = OutboundConnector()
    for asker in (Asker(), Asker(outbound=outbound)):
        with pytest.raises(ProviderUnusable):
            await asker.ask(f"https://{host}/")
        await asker.close()
    outbound.close()


@NO_NAMES
async def test_a_directory_whose_host_is_no_name_is_unusable(host: str) -> None:
    settings = Directory(id="d", title="D", host=host, port=636, tls_from_the_start=True, base="dc=example")
    with pytest.raises(ProviderUnusable, match="cannot be reached"):
        await AskedDirectory(settings).person("anna", "a password")
