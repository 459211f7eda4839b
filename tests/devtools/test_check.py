import sys
from pathlib import Path

import pytest
import yaml

from devtools.check import TOO_BUSY, WORKERS, main, passes, select, steps

ROOT = Path(__file__).parent.parent.parent


def test_every_check_runs_unless_some_are_named() -> None:
    assert select([]) == steps()
    assert [name for name, _ in select(["purity", "format"])] == ["format", "purity"]


def test_an_unknown_check_is_refused_rather_than_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purity", "fromat"]) == 2
    assert "format" in capsys.readouterr().out


def test_a_named_check_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purity"]) == 0
    printed = capsys.readouterr().out
    assert "purity   ok" in printed
    assert "types" not in printed


def test_a_check_that_fails_says_so_and_shows_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert not passes(("format", ["sh", "-c", "echo what is wrong; exit 1"]))
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "what is wrong" in printed


def test_the_hooks_fetch_nothing_and_call_checks_that_there_are() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    for hook in hooks["repos"][0]["hooks"]:
        program, command, *names = hook["entry"].split()
        assert (program, hook["language"]) == ("./dev", "system")
        assert command in ("fmt", "check")
        assert set(names) <= {name for name, _ in steps()}


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_the_forms_for_issues_can_be_read(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem != "config":
        assert {"name", "description", "body"} <= set(content)
        identifiers = [field["id"] for field in content["body"] if field["type"] != "markdown"]
        assert len(identifiers) == len(set(identifiers)) > 0


def test_a_machine_too_busy_for_several_processes_has_its_types_checked_by_one() -> None:
    said = f"import sys; sys.exit({TOO_BUSY!r} if {WORKERS!r} in sys.argv else 0)"
    assert passes(("types", [sys.executable, "-c", said, WORKERS]))
    assert not passes(("types", [sys.executable, "-c", "raise SystemExit(1)", WORKERS]))
