import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from devtools.releasing import sbom
from devtools.releasing.release import (
    CHANGELOG,
    VERSION_FILE,
    Proof,
    current_version,
    dated_changelog,
    main,
    version_key,
)

TOOLS = ("__init__", "release", "sbom", "dependency_audit")
ROOT = Path(__file__).parents[3]
WEAK = {"name": "left", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
SOUND = {"name": "right", "version": "2.0", "vulns": []}
UNASKED = {"name": "other", "skip_reason": "not found"}


def auditor(*packages: Mapping[str, object], status: int = 0) -> tuple[str, ...]:
    """A program that answers as pip-audit does."""
    answer = json.dumps({"dependencies": list(packages), "fixes": []})
    return (sys.executable, "-c", f"print({answer!r}); raise SystemExit({status})")


UNREACHABLE = (sys.executable, "-c", "raise SystemExit('the advisories cannot be reached')")
PASSES = Proof(check=("true",), auditor=auditor(SOUND))
FAILS = Proof(check=("false",), auditor=auditor(SOUND))
CHANGES = "# Changelog\n\n## Unreleased\n\n* Something new.\n\n## 0.0.1\n\n* Something old.\n"


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of its own with the files that a release touches, however the sources came here."""
    folder = tmp_path / "clone"
    tools = map(Path, ("devtools/__init__.py", *(f"devtools/releasing/{name}.py" for name in TOOLS)))
    for file in (VERSION_FILE, CHANGELOG, sbom.LOCK, sbom.VENDOR_LOCK, sbom.PROJECT, *tools):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes((ROOT / file).read_bytes())
    (folder / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    (folder / CHANGELOG).write_text(CHANGES)
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "A Maintainer")
    git(folder, "config", "user.email", "maintainer@localhost")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "The sources of this test")
    return folder


def test_our_own_changelog_can_be_released() -> None:
    changelog = (ROOT / CHANGELOG).read_text(encoding="utf-8")
    assert dated_changelog(changelog, "9.9.9", "2030-01-02").count("\n## 9.9.9 (2030-01-02)\n") == 1
    assert version_key(current_version(ROOT))


def test_a_release_sets_the_version_dates_the_changelog_commits_and_tags(clone: Path) -> None:
    assert main(["1.2.3"], clone, PASSES) == 0
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert '__version__ = "1.2.3"' in (clone / VERSION_FILE).read_text()
    changelog = (clone / CHANGELOG).read_text()
    assert f"## Unreleased\n\n## 1.2.3 ({today})\n\n* Something new.\n\n## 0.0.1" in changelog
    assert git(clone, "log", "-1", "--format=%s").strip() == "Release 1.2.3"
    assert git(clone, "cat-file", "-t", "v1.2.3").strip() == "tag"
    assert (
        git(clone, "tag", "--list", "--format=%(contents)", "v1.2.3").strip()
        == "1.2.3\n\n* Something new.\n\nDependency audit: no known weakness in 1 pinned packages."
    )
    assert git(clone, "rev-parse", "v1.2.3^{commit}") == git(clone, "rev-parse", "HEAD")
    assert git(clone, "status", "--porcelain") == ""


def test_a_dry_run_prints_all_of_it_and_changes_nothing(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    command = [sys.executable, "-m", "devtools.releasing.release", "1.2.3", "--dry-run"]
    answer = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout
    for part in (
        "bash .ci/run",
        '__version__ = "1.2.3"',
        "## 1.2.3 (",
        "Release 1.2.3",
        "v1.2.3",
        "Something new",
    ):
        assert part in answer
    assert "Something old" not in answer
    assert git(clone, "rev-parse", "HEAD") == before
    assert git(clone, "tag", "--list") == ""
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_tree_with_changes_is_not_released(
    clone: Path, dry_run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "stray.txt").write_text("not committed")
    assert main(["1.2.3", *dry_run], clone, PASSES) == 1
    assert "stray.txt" in capsys.readouterr().err
    assert git(clone, "tag", "--list") == ""


def test_nothing_is_written_when_the_check_fails(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1.2.3"], clone, FAILS) == 1
    assert "failed" in capsys.readouterr().err
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "tag", "--list") == ""


def test_a_version_is_released_once_and_never_an_older_one(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["1.2.3"], clone, PASSES) == 0
    assert main(["1.2.3"], clone, PASSES) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["1.2.2"], clone, PASSES) == 1
    assert "older" in capsys.readouterr().err


def test_a_release_without_news_is_refused(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1.2.3"], clone, PASSES) == 0
    assert main(["1.2.4"], clone, PASSES) == 1
    assert "Unreleased" in capsys.readouterr().err


def test_what_is_no_version_is_refused(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["next"], clone, PASSES) == 1
    assert "1.2.3" in capsys.readouterr().err


def test_versions_are_ordered_by_number_and_a_candidate_comes_before_its_release() -> None:
    versions = ["1.10.0", "1.9.0", "1.10.0rc2", "1.10.0rc10", "2.0.0"]
    assert sorted(versions, key=version_key) == ["1.9.0", "1.10.0rc2", "1.10.0rc10", "1.10.0", "2.0.0"]


def test_a_known_weakness_refuses_the_release(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weak = Proof(check=("true",), auditor=auditor(SOUND, WEAK, status=1))
    for more in ([], ["--without-audit"]):
        assert main(["1.2.3", *more], clone, weak) == 1
        assert "left 1.0: PYSEC-1" in capsys.readouterr().err
    assert git(clone, "tag", "--list") == ""
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "unmade",
    [UNREACHABLE, ("/nowhere/pip-audit",), auditor(), auditor(SOUND, UNASKED), auditor(SOUND, status=1)],
    ids=["unreachable", "missing", "empty", "left out", "failed"],
)
def test_an_audit_that_was_not_made_is_not_green(
    clone: Path, unmade: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["1.2.3"], clone, Proof(check=("true",), auditor=unmade)) == 1
    assert "not made" in capsys.readouterr().err
    assert git(clone, "tag", "--list") == ""
    assert main(["1.2.3", "--without-audit"], clone, Proof(check=("true",), auditor=unmade)) == 0
    assert "Dependency audit: not made" in git(clone, "tag", "--list", "--format=%(contents)", "v1.2.3")


def test_the_release_lists_every_part_with_its_hashes(clone: Path) -> None:
    assert main(["1.2.3"], clone, PASSES) == 0
    listed = json.loads(git(clone, "show", f"v1.2.3:{sbom.FILE}"))
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    assert listed["metadata"]["component"]["version"] == "1.2.3"
    pinned = [
        line for line in (ROOT / sbom.LOCK).read_text().splitlines() if "==" in line[:80] and line[0] != " "
    ]
    parts = {one["purl"]: one for one in listed["components"]}
    assert len([purl for purl in parts if purl.startswith("pkg:pypi/")]) == len(pinned)
    assert all(one["externalReferences"] for purl, one in parts.items() if purl.startswith("pkg:pypi/"))
    assert any(purl.startswith("pkg:npm/htmx.org@") for purl in parts)
    assert listed == sbom.document(clone, "1.2.3"), "the same sources give the same document"


def test_a_lock_that_is_not_understood_lists_nothing(clone: Path) -> None:
    with (clone / sbom.LOCK).open("a") as lock:
        lock.write("something @ https://elsewhere.invalid/x.whl\n")
    with pytest.raises(sbom.LockUnreadableError, match="neither"):
        sbom.document(clone, "1.2.3")
