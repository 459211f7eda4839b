"""Functions stay small. The few that were larger before there was a limit are listed, and the list may only shrink."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
RULES = "C901,PLR0912,PLR0915"
TOO_LARGE = {
    ("C901", "call"),
    ("C901", "_attempt"),
    ("C901", "_right"),
    ("C901", "job_problems"),
    ("C901", "test_whatever_happens_the_books_balance"),
    ("C901", "value_text"),
    ("PLR0912", "job_problems"),
}
"""Remove an entry, here and in pyproject.toml, when its function has become small; never add one."""


def findings() -> list[dict[str, str]]:
    """Every function above the limits, whether its file is excused or not."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        RULES,
        "--output-format",
        "json",
        "--exit-zero",
    ]
    command += ["--config", "lint.per-file-ignores={}", "."]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [
        {
            "rule": finding["code"],
            "file": finding["filename"],
            "function": function_at(Path(finding["filename"]), finding["location"]["row"]),
        }
        for finding in json.loads(result.stdout)
    ]


def function_at(file: Path, row: int) -> str:
    line = file.read_text(encoding="utf-8").splitlines()[row - 1]
    return line.partition("def ")[2].partition("(")[0]


def excused_files() -> dict[str, list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    excuses: dict[str, list[str]] = settings["tool"]["ruff"]["lint"]["per-file-ignores"]
    return excuses


def test_no_function_but_those_listed_is_above_the_limits() -> None:
    assert {(finding["rule"], finding["function"]) for finding in findings()} <= TOO_LARGE


def test_the_list_has_no_entry_that_is_not_needed_any_more() -> None:
    assert {(finding["rule"], finding["function"]) for finding in findings()} >= TOO_LARGE


def test_a_file_is_excused_only_for_what_it_needs() -> None:
    above = [(Path(finding["file"]), finding["rule"]) for finding in findings()]
    needless = [
        (pattern, rule)
        for pattern, rules in excused_files().items()
        for rule in rules
        if not any(rule == one and file.match(pattern.rpartition("/")[2]) for file, one in above)
    ]
    assert needless == []
