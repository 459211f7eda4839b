"""Secrets are sealed with a key outside the database."""

import stat
from pathlib import Path

import pytest

from simpletuner_fleet.store.sealing import KeyUnusable, SealedVault


def test_what_was_sealed_is_read_again_by_its_name_only(tmp_path: Path) -> None:
    vault = SealedVault.at(tmp_path / "secrets.key")
    sealed = vault.seal("hf", "canary-ü-1")
    assert "canary" not in sealed
    assert vault.seal("hf", "canary-ü-1") != sealed
    assert SealedVault.at(tmp_path / "secrets.key").unseal("hf", sealed) == "canary-ü-1"
    assert vault.unseal("other", sealed) is None


def test_the_key_is_made_at_first_use_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    vault = SealedVault.at(path)
    assert vault.unseal("hf", "AAAA") is None
    assert not path.exists()
    vault.seal("hf", "value")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["secrets.key"]


def test_a_lost_or_damaged_key_loses_the_secrets_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    vault = SealedVault.at(path)
    sealed = vault.seal("hf", "value")
    path.write_text("short\n")
    assert vault.unseal("hf", sealed) is None
    with pytest.raises(KeyUnusable):
        vault.seal("hf", "value")
    path.unlink()
    assert vault.unseal("hf", sealed) is None
    vault.seal("hf", "again")
    assert vault.unseal("hf", sealed) is None


@pytest.mark.parametrize("sealed", ["", "no base64!", "AAAA", "A" * 60])
def test_garbage_is_no_secret(tmp_path: Path, sealed: str) -> None:
    vault = SealedVault.at(tmp_path / "secrets.key")
    vault.seal("hf", "value")
    assert vault.unseal("hf", sealed) is None
