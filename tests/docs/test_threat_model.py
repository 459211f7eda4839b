"""Every test that the threat model names is there, and every attacker of the tests is in the threat model."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = (ROOT / "docs" / "security.md").read_text("utf-8")
ATTACKS = {
    str(path.relative_to(ROOT)): path
    for pattern in (
        "tests/attacks/**/test_*.py",
        "tests/fuzz/test_fuzzer.py",
        "tests/http/api/test_api_permissions.py",
        "tests/agent/guard/test_shim_starts.py",
        "tests/agent/isolation/test_named_paths.py",
        "tests/e2e/jobs/test_ungranted_paths.py",
        "tests/web/frame/test_trusted_types.py",
        "tests/web/pages/test_datasets.py",
        "tests/devtools/releasing/test_release.py",
    )
    for path in ROOT.glob(pattern)
}
TEST_FILE = r"`(tests/[\w/]+/test_\w+\.py)`"


def names_of_tests(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    functions = (one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return {one.name.removeprefix("test_") for one in functions if one.name.startswith("test_")}


def test_every_attacker_of_the_tests_is_in_the_model() -> None:
    headings = re.findall(r"^## .*$", MODEL, re.MULTILINE)
    assert {path for heading in headings for path in re.findall(TEST_FILE, heading)} == set(ATTACKS)


def test_every_test_that_the_model_names_is_there() -> None:
    for section in re.split(r"^## ", MODEL, flags=re.MULTILINE)[1:]:
        named = re.findall(TEST_FILE, section.splitlines()[0])
        assert named, section[:60]
        rows = [line for line in section.splitlines() if line.startswith("|")][2:]
        known = {test for path in named for test in names_of_tests(ATTACKS[path])}
        for row in rows:
            tests = re.findall(r"`(\w+)`", row.split("|")[-2])
            assert tests, f"no test holds this: {row}"
            assert set(tests) <= known, set(tests) - known
