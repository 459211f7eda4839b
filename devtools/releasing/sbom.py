"""What a release is made of, as CycloneDX: every pinned package with its hashes, and what the console ships of others.

It is read from the lock files, so the same sources give the same document on every machine.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

LOCK = Path("requirements.lock")
VENDOR_LOCK = Path("src/simpletuner_fleet/web/static/vendor/vendor.lock")
PROJECT = Path("pyproject.toml")
FILE = Path("sbom.cdx.json")
PINNED = re.compile(
    r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[\w,.-]+\])?==(?P<version>\S+)(?: ; (?P<marker>.*?))?(?: \\)?$"
)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class LockUnreadableError(Exception):
    """A line of a lock file is not understood: the document would leave something out."""


def document(root: Path, version: str) -> dict[str, Any]:
    """Returns the whole document. It holds no time of day: a second run must give the same."""
    project = tomllib.loads((root / PROJECT).read_text(encoding="utf-8"))["project"]
    name = project["name"]
    own = f"pkg:pypi/{name}@{version}"
    components = [*python_components(root), *vendored_components(root)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, own)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": name,
                "version": version,
                "purl": own,
            }
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def write(root: Path, version: str) -> Path:
    text = json.dumps(document(root, version), indent=1, ensure_ascii=False)
    (root / FILE).write_text(text + "\n", encoding="utf-8")
    return FILE


def python_components(root: Path) -> list[dict[str, Any]]:
    """Every package of the lock, also those of tests and tools: what a build can be changed by belongs to it."""
    components: list[dict[str, Any]] = []
    for line in (root / LOCK).read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        digest = HASH.search(line)
        if digest and components:
            distribution = {
                "type": "distribution",
                "url": f"{components[-1]['purl']}",
                "hashes": _hashes(digest[1]),
            }
            components[-1]["externalReferences"].append(distribution)
            continue
        pinned = PINNED.match(line)
        if pinned is None:
            raise LockUnreadableError(f"{LOCK}: {line!r} is neither a pinned package nor a hash.")
        components.append(_python_component(pinned))
    return components


def _python_component(pinned: "re.Match[str]") -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", pinned["name"]).lower()
    purl = f"pkg:pypi/{name}@{pinned['version']}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": pinned["version"],
        "purl": purl,
        "externalReferences": [],
    }
    if pinned["marker"]:
        component["properties"] = [{"name": "python:environment-marker", "value": pinned["marker"]}]
    return component


def vendored_components(root: Path) -> list[dict[str, Any]]:
    packages = tomllib.loads((root / VENDOR_LOCK).read_text(encoding="utf-8"))["package"]
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:npm/{one['name']}@{one['version']}",
            "name": one["name"],
            "version": one["version"],
            "purl": f"pkg:npm/{one['name']}@{one['version']}",
            "licenses": [{"license": {"id": one["licence"]}}],
            "hashes": _hashes(one["tarball_sha256"]),
        }
        for one in packages
    ]


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]
