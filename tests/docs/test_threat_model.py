"""Every test that the threat model names is there, and every attacker of the tests is in the threat model."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = (ROOT / "docs" / "security.md").read_text("utf-8")
ATTACKS = {path.name: path for path in (ROOT / "tests" / "attacks").glob("test_*.py")}


def names_of_tests(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    functions = (one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return {one.name.removeprefix("test_") for one in functions if one.name.startswith("test_")}


def test_every_attacker_of_the_tests_is_in_the_model() -> None:
    assert set(re.findall(r"^## .*\(`tests/attacks/(test_\w+\.py)`\)$", MODEL, re.MULTILINE)) == set(ATTACKS)


def test_every_test_that_the_model_names_is_there() -> None:
    for section in re.split(r"^## ", MODEL, flags=re.MULTILINE)[1:]:
        named = re.search(r"`tests/attacks/(test_\w+\.py)`", section)
        assert named, section[:60]
        rows = [line for line in section.splitlines() if line.startswith("|")][2:]
        known = names_of_tests(ATTACKS[named[1]])
        for row in rows:
            tests = re.findall(r"`(\w+)`", row.split("|")[-2])
            assert tests, f"no test holds this: {row}"
            assert set(tests) <= known, set(tests) - known
