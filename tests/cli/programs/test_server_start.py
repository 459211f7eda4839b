"""A server that cannot start leaves the one that runs as it is."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simpletuner_fleet.cli.main import main
from simpletuner_fleet.store import open_store


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)

    def start(*words: str) -> str:
        assert main(["server", "--data-dir", str(tmp_path), "--port", "0", *words]) != 0
        return capsys.readouterr().err

    return start


async def test_a_second_server_on_one_folder_neither_hides_the_first_nor_makes_its_certificate(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    first = open_store(f"sqlite:///{tmp_path / 'fleet.db'}")
    note = json.dumps({"url": "http://127.0.0.1:8001"})
    (tmp_path / "server.json").write_text(note)
    try:
        assert "Another orchestrator" in await asyncio.to_thread(refused, "--ssl")
    finally:
        await first.close()
    assert (tmp_path / "server.json").read_text() == note
    assert not (tmp_path / "tls").exists()


@pytest.mark.parametrize("kind", ["folder", "noise"])
def test_a_secrets_key_that_is_none_is_told_at_the_start(
    tmp_path: Path, refused: Callable[..., str], kind: str
) -> None:
    key = tmp_path / "key"
    key.mkdir() if kind == "folder" else key.write_bytes(b"\x00\xff")
    assert f"{key} cannot be read or is damaged" in refused("--secrets-key-file", str(key))


@pytest.mark.parametrize("content", [b"", b"half of it"])
def test_an_audit_key_that_is_not_whole_is_told_at_the_start_and_left_as_it_is(
    tmp_path: Path, refused: Callable[..., str], content: bytes
) -> None:
    key = tmp_path / "audit.key"
    key.write_bytes(content)
    said = " ".join(refused("--no-local").split())
    assert f"{key} is corrupted" in said
    assert f"restore it from a backup, or remove {key} to create a new one" in said
    assert key.read_bytes() == content
