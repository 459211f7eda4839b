"""What a login leaves for later commands."""

from pathlib import Path

import pytest

from simpletuner_fleet.client import credentials
from simpletuner_fleet.client.credentials import Login, SavedLogins


def test_an_authority_that_was_given_by_a_relative_path_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "https://fleet.example.com"
    credentials.write(
        tmp_path / "credentials.toml", SavedLogins(url, {url: Login("st_1", None, "tls/ca.pem")})
    )
    monkeypatch.chdir("/")
    assert credentials.read(tmp_path / "credentials.toml").servers[url].ca_cert == str(
        tmp_path / "tls" / "ca.pem"
    )
