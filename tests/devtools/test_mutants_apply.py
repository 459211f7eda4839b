"""The defects we know must stay applicable, or the run that shows them killed shows nothing."""

import pytest

from devtools.mutants.table import MUTANTS, Mutant
from devtools.mutants.workbench import ROOT, occurrences


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_occurs_once_and_its_tests_exist(mutant: Mutant) -> None:
    assert occurrences(mutant) == 1
    assert mutant.old != mutant.new
    assert all(tests.startswith(("sim:", "large:")) or (ROOT / tests).exists() for tests in mutant.tests)


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
