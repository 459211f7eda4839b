import json
from pathlib import Path

import pytest

from devtools.coverage_report import Coverage, FileCoverage, main, parse, text

PROBE = """
import subprocess
import sys

def test_code_runs_here_and_in_another_process() -> None:
    from simpletuner_fleet.languages import choosing
    assert choosing
    subprocess.run([sys.executable, "-c", "import simpletuner_fleet.languages.pseudo"], check=True)

def test_that_fails() -> None:
    raise AssertionError
"""


def percent(coverage: Coverage, end_of_path: str) -> float:
    return next(file.percent for file in coverage.files if file.path.endswith(end_of_path))


def test_it_counts_every_process_and_returns_the_outcome_of_the_tests(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text(PROBE)
    folder = tmp_path / "coverage"
    assert main(["-q", "-n", "1", str(probe)], folder, "simpletuner_fleet.languages") == 1
    coverage = parse((folder / "report.json").read_text())
    assert percent(coverage, "languages/choosing.py") > 0
    assert percent(coverage, "languages/pseudo.py") > 0
    printed = capfd.readouterr().out
    assert "1 failed, 1 passed" in printed
    assert "least covered of" in printed
    assert "Total: " in printed


def test_the_ten_least_covered_files_are_listed_the_worst_first() -> None:
    files = [FileCoverage(f"file{number}.py", float(number), 100 - number) for number in range(20)]
    lines = text(Coverage(87.65, tuple(reversed(files)))).splitlines()
    assert lines[0] == "The 10 least covered of 20 files:"
    assert [line.split()[-1] for line in lines[1:-1]] == [f"file{number}.py" for number in range(10)]
    assert lines[-1] == "Total: 87.7 %"


def test_a_file_without_a_statement_is_not_listed() -> None:
    nothing = {"percent_covered": 100.0, "missing_lines": 0, "num_statements": 0}
    something = {"percent_covered": 50.0, "missing_lines": 3, "num_statements": 6}
    files = {"empty.py": {"summary": nothing}, "half.py": {"summary": something}}
    report = json.dumps({"files": files, "totals": {"percent_covered": 50.0}})
    assert parse(report) == Coverage(50.0, (FileCoverage("half.py", 50.0, 3),))
