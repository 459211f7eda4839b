"""Every statement of the seed document has a test that holds it true, and every row of the table a statement."""

import ast
import hashlib
from collections import Counter
from functools import cache
from pathlib import Path

from tests.seed.sentences import SEED, Statement, code_blocks, statements
from tests.seed.table import ROWS

ROOT = Path(__file__).parents[2]
SEED_SHA256 = "1f671f05ee7f45472bc543ef7970d055d0b319d7de393b03b228811a53febed6"


def first_line(statement: Statement) -> tuple[str, str]:
    return statement.section, statement.text.split("\n", 1)[0]


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def test_the_seed_is_the_one_we_promised_to_make_true() -> None:
    assert hashlib.sha256(SEED.read_bytes()).hexdigest() == SEED_SHA256


def test_no_two_statements_begin_alike_in_one_section() -> None:
    twice = [key for key, count in Counter(map(first_line, statements())).items() if count > 1]
    assert not twice


def test_every_statement_has_a_row() -> None:
    known = {(row.section, row.begins) for row in ROWS}
    assert not [statement for statement in statements() if first_line(statement) not in known]


def test_every_row_has_a_statement_and_only_one_row_has_it() -> None:
    said = {first_line(statement) for statement in statements()}
    rows = [(row.section, row.begins) for row in ROWS]
    assert not [key for key in rows if key not in said]
    assert len(rows) == len(set(rows))


def test_every_row_names_tests_and_every_named_test_exists() -> None:
    missing = []
    for row in ROWS:
        assert row.tests, row
        for test in row.tests:
            path, _, name = test.partition("::")
            if not (ROOT / path).is_file() or name not in names_in(path):
                missing.append(test)
    assert not missing


def test_every_word_of_the_seed_is_in_a_statement_a_heading_or_a_table_head() -> None:
    """So that the splitting cannot lose anything."""
    covered = "\n".join(statement.text for statement in statements())
    for line in SEED.read_text(encoding="utf-8").splitlines():
        bare = line.strip().lstrip("-*0123456789. ")
        is_head = line.startswith(("#", "|", "```"))
        if bare and not is_head:
            for part in bare.split(". "):
                assert part.rstrip(".") in covered, line
    assert len(code_blocks()) == SEED.read_text(encoding="utf-8").count("```") // 2
