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
        """Of everything that stands in the folder because of it: name and SHA-256."""
        for file in self.files:
            yield file.name, file.sha256
        if self.sprite:
            yield self.sprite.name, self.sprite.sha256


def read_lock(folder: Path = FOLDER) -> list[Package]:
    told = tomllib.loads((folder / LOCK).read_text(encoding="utf-8"))
    return convert(told["package"], list[Package])


def complaints(folder: Path = FOLDER) -> list[str]:
    """What is missing, changed, or there without being named."""
    named = dict(pair for package in read_lock(folder) for pair in package.hashes())
    found = [f"{name}: missing" for name in named if not (folder / name).is_file()]
    for path in sorted(folder.iterdir()):
        if path.name == LOCK:
            continue
        if path.name not in named:
            found.append(f"{path.name}: not named in {LOCK}")
        elif digest(path.read_bytes()) != named[path.name]:
            found.append(f"{path.name}: not the file that {LOCK} names")
    return found


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def registry() -> str:
    """Where npm would look on this machine; the public one if nobody has said anything."""
    given = os.environ.get("NPM_CONFIG_REGISTRY") or _asked_of_npm()
    return (given or f"https://{PUBLIC_REGISTRY}").rstrip("/")


def _asked_of_npm() -> str:
    try:
        asked = subprocess.run(
            ["npm", "config", "get", "registry"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    answer = asked.stdout.strip()
    return answer if answer.startswith(("http://", "https://")) else ""


def fetch(package: Package) -> bytes:
    url = f"{registry()}/{package.name}/-/{package.name}-{package.version}.tgz"
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def unpacked(tarball: bytes) -> dict[str, bytes]:
    """Every file of a package, by its path beneath the one folder that a package has."""
    with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as archive:
        members = ((member.name, archive.extractfile(member)) for member in archive if member.isfile())
        return {name.partition("/")[2]: opened.read() for name, opened in members if opened}


def written(package: Package, contents: dict[str, bytes]) -> dict[str, bytes]:
    """What the folder gets of a package."""
    made = {
        file.name: file.before.encode() + contents[file.path] + _on_a_line(contents[file.path], file.after)
        for file in package.files
    }
    if package.sprite:
        sprite = package.sprite
        icons = {name: contents[f"{sprite.folder}/{name}.svg"].decode() for name in sprite.icons}
        made[sprite.name] = sprite_of(icons, f"{package.name} {package.version}, {package.licence}").encode()
    return made


def _on_a_line(content: bytes, after: str) -> bytes:
    return after.encode() if not after or content.endswith(b"\n") else b"\n" + after.encode()


def sprite_of(icons: dict[str, str], source: str) -> str:
    symbols = [symbol_of(name, text) for name, text in icons.items()]
    return "\n".join([f"<!-- {source} -->", f'<svg xmlns="{SVG}">', *symbols, "</svg>", ""])


def symbol_of(name: str, text: str) -> str:
    """Drawn in the colour of the text around it, as the icon by itself would be."""
    icon = xml.fromstring(text)
    kept = ("viewBox", "fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin")
    attributes = "".join(f' {key}="{icon.attrib[key]}"' for key in kept)
    shapes = "".join(_shape(element) for element in icon)
    return f'<symbol id="{name}"{attributes}>{shapes}</symbol>'


def _shape(element: xml.Element) -> str:
    attributes = "".join(f' {key}="{value}"' for key, value in element.attrib.items())
    return f"<{element.tag.rpartition('}')[2]}{attributes}/>"


def pinned(lock: str, package: Package, tarball: bytes, made: dict[str, bytes]) -> str:
    """The lock's text with the hashes of this package put in, and nothing else touched."""
    head, mark, rest = lock.partition(f'name = "{package.name}"\n')
    body, following, tail = rest.partition("[[package]]")
    body = re.sub(r'tarball_sha256 = "\w*"', f'tarball_sha256 = "{digest(tarball)}"', body)
    for name, content in made.items():
        place = re.compile(rf'(name = {re.escape(json.dumps(name))}.*?\bsha256 = ")\w*', re.DOTALL)
        body = place.sub(rf"\g<1>{digest(content)}", body, count=1)
    return head + mark + body + following + tail


def install(pin: bool) -> list[str]:
    """Writes every file; gives what does not match the lock, which is then not written."""
    refused = []
    for package in read_lock():
        print(f"{package.name} {package.version} ...", flush=True)
        tarball = fetch(package)
        made = written(package, unpacked(tarball))
        if pin:
            lock = FOLDER / LOCK
            lock.write_text(
                pinned(lock.read_text(encoding="utf-8"), package, tarball, made), encoding="utf-8"
            )
        elif digest(tarball) != package.tarball_sha256 or {*package.hashes()} != hashes_of(made):
            refused.append(
                f"{package.name} {package.version}: not what {LOCK} names; nothing of it was written"
            )
            continue
        for name, content in made.items():
            (FOLDER / name).write_bytes(content)
    return refused


def hashes_of(made: dict[str, bytes]) -> set[tuple[str, str]]:
    return {(name, digest(content)) for name, content in made.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev vendor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare what is there with the lock")
    parser.add_argument(
        "--pin", action="store_true", help="write the hashes of what was fetched into the lock"
    )
    chosen = parser.parse_args()
    found = complaints() if chosen.check else [*install(chosen.pin), *complaints()]
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
