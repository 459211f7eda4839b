"""One table of reasons: every code has its row, and nobody else keeps a table of codes."""

import re
from pathlib import Path

import pytest

import simpletuner_fleet
from simpletuner_fleet.core.placement import reasons
from simpletuner_fleet.core.placement.matching import Refusal
from simpletuner_fleet.core.placement.reasons import CODE_OF_REFUSAL, REASONS, Code, Kind

SOURCES = Path(simpletuner_fleet.__file__).parent


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_kind_a_sentence_and_a_label(code: Code) -> None:
    row = REASONS[code]
    assert row.code is code
    assert row.kind in Kind
    assert row.sentence
    assert row.label
    assert len(row.label) <= 40, "it stands beside a number"


def test_there_is_no_row_without_a_code() -> None:
    assert set(REASONS) == set(Code)


def test_what_workers_refuse_has_one_reason_each_and_says_what_would_help() -> None:
    assert set(CODE_OF_REFUSAL) == set(Refusal)
    assert sum(len(row.refusals) for row in REASONS.values()) == len(Refusal)
    for code in {*CODE_OF_REFUSAL.values(), *reasons.IMPOSSIBLE}:
        assert REASONS[code].advice, code


@pytest.mark.parametrize("code", list(Code))
def test_an_administrator_or_a_submitter_is_told_what_to_change(code: Code) -> None:
    """But for the approval, which is a button beside the job, and the accelerator, which only a person can judge."""
    row = REASONS[code]
    if row.kind is not Kind.WAIT and code not in (Code.APPROVAL_REQUIRED, Code.WRONG_ACCELERATOR):
        assert row.fixes


def test_codes_are_spelled_in_the_table_alone() -> None:
    """Elsewhere they are members of Code, so that a new one is added in one place."""
    spelled = re.compile("|".join(f"[\"']{code}[\"']" for code in Code))
    others = [
        path for path in SOURCES.rglob("*.py") if path != SOURCES / "core" / "placement" / "reason_codes.py"
    ]
    assert [str(path) for path in others if spelled.search(path.read_text("utf-8"))] == []
