"""Keys as a provider, or whoever answers in its place, hands them out."""

import pytest

from simpletuner_fleet.core.errors import ProviderUnusable
from simpletuner_fleet.orchestrator.sign_in.keys import public_keys


@pytest.mark.parametrize("document", [b"", b"<html>", b"[]", b'{"keys": 3}', b'{"keys": [{"kty": "\xff"}]}'])
def test_keys_that_cannot_be_read_are_called_so(document: bytes) -> None:
    with pytest.raises(ProviderUnusable, match="keys cannot be read"):
        public_keys(document)
