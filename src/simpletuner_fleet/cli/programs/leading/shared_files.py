"""Shares the files that all orchestrators of a fleet need alike: in the database, sealed with the fleet's key."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from simpletuner_fleet.cli.frame.private_files import private_folder
from simpletuner_fleet.client.private_files import write_private_bytes
from simpletuner_fleet.store.sealing import KeyUnusable, SealedVault


class SharedBook(Protocol):
    def close(self) -> None: ...
    def shared_file(self, name: str, sealed: str | None) -> str | None: ...
    def replace_shared_file(self, name: str, sealed: str) -> None: ...


class SharedItem(Struct, frozen=True, kw_only=True):
    """Groups shared files that belong together: all of them are ours, or all are another orchestrator's."""

    name: str
    files: tuple[str, ...]
    make: Callable[[], object]
    """Makes them where they are missing."""
    ours_counts: bool = False
    """Whether what lies here replaces what all have: somebody has just said so."""


class SharedFiles:
    def __init__(self, book: SharedBook, data_dir: Path, key_file: Path) -> None:
        self._book = book
        self._data_dir = data_dir
        self._key_file = key_file
        self._vault = SealedVault.at(key_file)

    def bring(self, items: Sequence[SharedItem]) -> None:
        """Stores our files if none are stored yet or ours count, and otherwise takes the stored ones.

        Raises KeyUnusable where our key is not the fleet's.
        """
        try:
            for item in items:
                self._bring(item)
        finally:
            self._book.close()

    def _bring(self, item: SharedItem) -> None:
        stored = self._book.shared_file(item.name, None)
        if stored is None:
            item.make()
            stored = self._book.shared_file(item.name, self._sealed(item))
        elif item.ours_counts:
            self._unsealed(item, stored)  # who does not have the fleet's key changes nothing
            item.make()
            self._book.replace_shared_file(item.name, self._sealed(item))
        if stored is not None and not item.ours_counts:
            self._write(self._unsealed(item, stored))

    def _sealed(self, item: SharedItem) -> str:
        contents = {
            file: base64.b64encode((self._data_dir / file).read_bytes()).decode() for file in item.files
        }
        return self._vault.seal(f"shared {item.name}", msgspec.json.encode(contents).decode())

    def _unsealed(self, item: SharedItem, sealed: str) -> dict[str, str]:
        text = self._vault.unseal(f"shared {item.name}", sealed)
        if text is None:
            raise KeyUnusable(
                f"This database belongs to a fleet whose secrets are sealed with another key than {self._key_file}.",
                next_step="Copy secrets.key from the data folder of an orchestrator of this fleet"
                " (SIMPLETUNER_SECRETS_KEY_FILE names another place), or give this one a database of its own.",
            )
        return msgspec.json.decode(text, type=dict[str, str])

    def _write(self, contents: dict[str, str]) -> None:
        for file, content in contents.items():
            path, raw = self._data_dir / file, base64.b64decode(content)
            if path.exists() and path.read_bytes() == raw:
                continue
            private_folder(path.parent)
            write_private_bytes(path, raw)
