"""`./dev release VERSION`: asks for known weaknesses, sets the version, dates the changelog, lists parts, commits and tags.

Pushing is left to a person.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from devtools.releasing import sbom
from devtools.releasing.dependency_audit import Audit, audit

ROOT = Path(__file__).parents[2]
VERSION_FILE = Path("src/simpletuner_fleet/__init__.py")
CHANGELOG = Path("CHANGELOG.md")
FULL_CHECK = ("bash", ".ci/run")
UNRELEASED = "## Unreleased"
VERSION_LINE = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?")


class ReleaseRefusedError(Exception):
    """A reason why this release cannot be made, and what to do about it."""


class Proof(Struct, frozen=True):
    """What must hold before a release is made."""

    check: Sequence[str] = FULL_CHECK
    auditor: Sequence[str] | None = None
    """A pip-audit that is installed already; None: one is installed from the package index."""
    without_audit: bool = False
    """Somebody decided that the release is made though nobody could be asked for known weaknesses."""


def release(root: Path, version: str, today: str, proof: Proof, dry_run: bool = False) -> None:
    """Makes the commit and the annotated tag of one release; raises before it has changed anything."""
    refuse_if_dirty(root)
    refuse_if_not_newer(root, version)
    notes = unreleased_notes((root / CHANGELOG).read_text(encoding="utf-8"))
    if dry_run:
        print(plan(version, today, proof.check, notes))
        return
    if subprocess.run(proof.check, cwd=root, check=False).returncode != 0:
        raise ReleaseRefusedError(
            f"`{' '.join(proof.check)}` failed. Mend what it names, commit, and try again."
        )
    audited = refuse_if_weak(audit(root, proof.auditor), proof.without_audit)
    print(audited)
    notes = f"{notes}\n\n{audited}."
    write_version(root, version, today)
    git(root, "add", str(VERSION_FILE), str(CHANGELOG), str(sbom.write(root, version)))
    git(root, "commit", "--quiet", "-m", f"Release {version}")
    git(root, "tag", "--annotate", "--cleanup=verbatim", tag_name(version), "-m", f"{version}\n\n{notes}")
    print(f"Released {version}. Publish it: git push --follow-tags")


def refuse_if_weak(audited: Audit, without_audit: bool) -> Audit:
    if audited.not_made and not without_audit:
        raise ReleaseRefusedError(
            f"{audited}. Try again where the advisories can be reached, or say --without-audit: the tag then says so too."
        )
    if audited.weaknesses and not audited.not_made:
        raise ReleaseRefusedError(f"{audited}. Raise their versions: ./dev lock --upgrade")
    return audited


def refuse_if_dirty(root: Path) -> None:
    changes = git(root, "status", "--porcelain")
    if changes:
        raise ReleaseRefusedError(f"The working tree has changes. Commit or remove them first:\n{changes}")


def refuse_if_not_newer(root: Path, version: str) -> None:
    """The version in the source may be released once; after that only a higher one."""
    current = current_version(root)
    if version_key(version) < version_key(current):
        raise ReleaseRefusedError(
            f"{version} is older than the current version, {current}. Name a newer one."
        )
    if git(root, "tag", "--list", tag_name(version)):
        raise ReleaseRefusedError(f"The tag {tag_name(version)} exists already. Name a newer version.")


def version_key(version: str) -> tuple[int, ...]:
    """Orders versions; a release candidate comes before its release."""
    parts = VERSION.fullmatch(version)
    if parts is None:
        raise ReleaseRefusedError(f"{version!r} is not a version. Write it like 1.2.3 or 1.2.3rc1.")
    major, minor, patch, candidate = parts.groups()
    final = candidate is None
    return int(major), int(minor), int(patch), int(final), int(candidate or 0)


def current_version(root: Path) -> str:
    version = VERSION_LINE.search((root / VERSION_FILE).read_text(encoding="utf-8"))
    if version is None:
        raise ReleaseRefusedError(f'{VERSION_FILE} has no line like: __version__ = "1.2.3"')
    return version[1]


def unreleased_notes(changelog: str) -> str:
    """Returns what the changelog says about the coming version."""
    _, heading, rest = changelog.partition(f"\n{UNRELEASED}\n")
    notes = rest.partition("\n## ")[0].strip()
    if not heading or not notes:
        raise ReleaseRefusedError(
            f'{CHANGELOG} says nothing under "{UNRELEASED}". Write what is new for users.'
        )
    return notes


def write_version(root: Path, version: str, today: str) -> None:
    source, changelog = root / VERSION_FILE, root / CHANGELOG
    text = VERSION_LINE.sub(f'__version__ = "{version}"', source.read_text(encoding="utf-8"))
    source.write_text(text, encoding="utf-8")
    changelog.write_text(
        dated_changelog(changelog.read_text(encoding="utf-8"), version, today), encoding="utf-8"
    )


def dated_changelog(changelog: str, version: str, today: str) -> str:
    """Gives the unreleased notes their version and date, under a fresh and empty heading for what comes next."""
    return changelog.replace(f"\n{UNRELEASED}\n", f"\n{UNRELEASED}\n\n## {version} ({today})\n", 1)


def tag_name(version: str) -> str:
    return f"v{version}"


def plan(version: str, today: str, check: Sequence[str], notes: str) -> str:
    return "\n".join(
        (
            f"would run:    {' '.join(check)}",
            f'would write:  {VERSION_FILE}: __version__ = "{version}"',
            f"would write:  {CHANGELOG}: {UNRELEASED} becomes ## {version} ({today})",
            "would ask:    pip-audit about every package of requirements.lock, and stop at a known weakness",
            f"would write:  {sbom.FILE}: every part, as CycloneDX",
            f"would commit: Release {version}",
            f"would tag:    {tag_name(version)}, annotated with:",
            "",
            notes,
        )
    )


def git(root: Path, *arguments: str) -> str:
    """Returns what git prints; its own complaint is the reason of a refusal."""
    result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ReleaseRefusedError(f"git {arguments[0]} failed: {result.stderr.strip()}")
    return result.stdout.rstrip()


def main(argv: Sequence[str] | None = None, root: Path = ROOT, proof: Proof | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev release", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("version", help="like 1.2.3 or 1.2.3rc1")
    parser.add_argument(
        "--without-audit",
        action="store_true",
        help="release although known weaknesses cannot be asked for here; the tag says that the audit was not made",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be done and change nothing")
    arguments = parser.parse_args(argv)
    try:
        proof = replace(proof or Proof(), without_audit=arguments.without_audit)
        release(root, arguments.version, f"{datetime.now(UTC):%Y-%m-%d}", proof, arguments.dry_run)
    except ReleaseRefusedError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
