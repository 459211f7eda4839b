"""`./dev vendor`: the scripts, styles and icons of other projects that the console ships, as vendor.lock names them.

Fetches each package from the npm registry, checks it, and writes its files. With `--check` it asks nobody and only
compares what is there. With `--pin` it writes the hashes it finds into the lock, after a change of version by hand.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen

from msgspec import Struct, convert

FOLDER = Path(__file__).parent.parent / "src" / "simpletuner_fleet" / "web" / "static" / "vendor"
LOCK = "vendor.lock"
PUBLIC_REGISTRY = ".".join(("registry", "npmjs", "org"))
PATIENCE_S = 60
SVG = "http://www.w3.org/2000/svg"


class File(Struct, frozen=True):
    name: str
    path: str
    sha256: str
    before: str = ""
    after: str = ""


class Sprite(Struct, frozen=True):
    """Single icons made one file, each to be used by its name."""

    name: str
    folder: str
    sha256: str
    icons: list[str]


class Package(Struct, frozen=True):
    name: str
    version: str
    licence: str
    tarball_sha256: str
    files: list[File]
    sprite: Sprite | None = None

    def hashes(self) -> Iterator[tuple[str, str]]:
        """Yields name and SHA-256 of everything that stands in the folder because of it."""
        for file in self.files:
            yield file.name, file.sha256
        if self.sprite:
            yield self.sprite.name, self.sprite.sha256


def read_lock(folder: Path = FOLDER) -> list[Package]:
    content = tomllib.loads((folder / LOCK).read_text(encoding="utf-8"))
    return convert(content["package"], list[Package])


def complaints(folder: Path = FOLDER) -> list[str]:
    """Says what is missing, changed, or there without being in the lock."""
    hashes = dict(pair for package in read_lock(folder) for pair in package.hashes())
    problems = [f"{name}: missing" for name in hashes if not (folder / name).is_file()]
    for path in sorted(folder.iterdir()):
        if path.name == LOCK:
            continue
        if path.name not in hashes:
            problems.append(f"{path.name}: not named in {LOCK}")
        elif digest(path.read_bytes()) != hashes[path.name]:
            problems.append(f"{path.name}: not the file that {LOCK} names")
    return problems


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def registry() -> str:
    """Returns where npm would look on this machine; the public one if nobody has said anything."""
    url = os.environ.get("NPM_CONFIG_REGISTRY") or _registry_of_npm()
    return (url or f"https://{PUBLIC_REGISTRY}").rstrip("/")


def _registry_of_npm() -> str:
    try:
        result = subprocess.run(
            ["npm", "config", "get", "registry"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    answer = result.stdout.strip()
    return answer if answer.startswith(("http://", "https://")) else ""


def fetch(package: Package) -> bytes:
    url = f"{registry()}/{package.name}/-/{package.name}-{package.version}.tgz"
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def unpack(tarball: bytes) -> dict[str, bytes]:
    """Returns every file of a package by its path beneath the one folder that a package has."""
    with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as archive:
        members = ((member.name, archive.extractfile(member)) for member in archive if member.isfile())
        return {name.partition("/")[2]: opened.read() for name, opened in members if opened}


def files_of(package: Package, contents: dict[str, bytes]) -> dict[str, bytes]:
    """Returns what the folder gets of a package: contents by name."""
    files = {
        file.name: file.before.encode() + contents[file.path] + _on_a_line(contents[file.path], file.after)
        for file in package.files
    }
    if package.sprite:
        sprite = package.sprite
        icons = {name: contents[f"{sprite.folder}/{name}.svg"].decode() for name in sprite.icons}
        files[sprite.name] = sprite_of(icons, f"{package.name} {package.version}, {package.licence}").encode()
    return files


def _on_a_line(content: bytes, after: str) -> bytes:
    return after.encode() if not after or content.endswith(b"\n") else b"\n" + after.encode()


def sprite_of(icons: dict[str, str], source: str) -> str:
    symbols = [symbol_of(name, text) for name, text in icons.items()]
    return "\n".join([f"<!-- {source} -->", f'<svg xmlns="{SVG}">', *symbols, "</svg>", ""])


def symbol_of(name: str, text: str) -> str:
    """Makes one symbol, drawn in the colour of the text around it, as the icon by itself would be."""
    icon = xml.fromstring(text)
    copied = ("viewBox", "fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin")
    attributes = "".join(f' {key}="{icon.attrib[key]}"' for key in copied)
    shapes = "".join(_shape(element) for element in icon)
    return f'<symbol id="{name}"{attributes}>{shapes}</symbol>'


def _shape(element: xml.Element) -> str:
    attributes = "".join(f' {key}="{value}"' for key, value in element.attrib.items())
    return f"<{element.tag.rpartition('}')[2]}{attributes}/>"


def with_hashes(lock: str, package: Package, tarball: bytes, files: dict[str, bytes]) -> str:
    """Returns the lock's text with the hashes of this package put in, and nothing else touched."""
    head, mark, rest = lock.partition(f'name = "{package.name}"\n')
    body, following, tail = rest.partition("[[package]]")
    body = re.sub(r'tarball_sha256 = "\w*"', f'tarball_sha256 = "{digest(tarball)}"', body)
    for name, content in files.items():
        place = re.compile(rf'(name = {re.escape(json.dumps(name))}.*?\bsha256 = ")\w*', re.DOTALL)
        body = place.sub(rf"\g<1>{digest(content)}", body, count=1)
    return head + mark + body + following + tail


def install(pin: bool) -> list[str]:
    """Writes every file; returns what does not match the lock, which is then not written."""
    problems = []
    for package in read_lock():
        print(f"{package.name} {package.version} ...", flush=True)
        tarball = fetch(package)
        files = files_of(package, unpack(tarball))
        if pin:
            lock = FOLDER / LOCK
            lock.write_text(
                with_hashes(lock.read_text(encoding="utf-8"), package, tarball, files), encoding="utf-8"
            )
        elif digest(tarball) != package.tarball_sha256 or {*package.hashes()} != hashes_of(files):
            problems.append(
                f"{package.name} {package.version}: not what {LOCK} names; nothing of it was written"
            )
            continue
        for name, content in files.items():
            (FOLDER / name).write_bytes(content)
    return problems


def hashes_of(files: dict[str, bytes]) -> set[tuple[str, str]]:
    return {(name, digest(content)) for name, content in files.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev vendor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare what is there with the lock")
    parser.add_argument(
        "--pin", action="store_true", help="write the hashes of what was fetched into the lock"
    )
    options = parser.parse_args()
    problems = complaints() if options.check else [*install(options.pin), *complaints()]
    for complaint in problems:
        print(complaint, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
