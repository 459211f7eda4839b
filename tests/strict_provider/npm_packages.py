"""Packages of the npm registry as a package-lock.json pins them, without npm: fetched, checked and unpacked, never run."""

import base64
import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from devtools.vendor import registry, unpack

PLACE = Path(__file__).parents[2] / ".dev" / "npm"
PATIENCE_S = 60
AT_ONCE = 8


def installed(folder: Path) -> Path | None:
    """Returns a folder with the files of this one and their node_modules; None where the registry is not to be had."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".mjs")]
    made_from = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    aside = PLACE / f"{folder.name}-{made_from}"
    if aside.exists():
        return aside
    arriving = PLACE / f"{aside.name}.{os.getpid()}"
    arriving.mkdir(parents=True, exist_ok=True)
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    at = registry()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda place: _bring(at, arriving, place, packages[place]), filter(None, packages)))
        for path in files:
            shutil.copy(path, arriving)
        if not aside.exists():
            arriving.rename(aside)
    except OSError:
        return aside if aside.exists() else None
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    return aside


def _bring(at: str, folder: Path, place: str, pinned: dict[str, Any]) -> None:
    name = place.rpartition("node_modules/")[2]
    address = f"{at}/{name}/-/{name.rpartition('/')[2]}-{pinned['version']}.tgz"
    with urlopen(address, timeout=PATIENCE_S) as answer:
        tarball = bytes(answer.read())
    digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    assert pinned["integrity"] == f"sha512-{digest}", f"{name} is not what package-lock.json names"
    for path, content in unpack(tarball).items():
        file = folder / place / path
        assert file.resolve().is_relative_to((folder / place).resolve()), path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
