"""Who noticed which defect the last time, and who fails without any: kept between runs in a file of this machine."""

import json
import threading
from pathlib import Path

from devtools.mutants.table import Mutant
from devtools.mutants.workbench import ROOT, Failure, Workbench

FILE = ROOT / ".dev" / "mutants.json"


class Killers:
    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._by_mutant: dict[str, str] = _read(file)
        self._fails_anyway: dict[str, bool] = {}

    def of(self, mutant: Mutant) -> list[str]:
        known = self._by_mutant.get(mutant.name)
        return [known] if known else []

    def note(self, mutant: Mutant, failure: Failure) -> None:
        with self._lock:
            if self._by_mutant.get(mutant.name) == failure.tests:
                return
            self._by_mutant[mutant.name] = failure.tests
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_text(json.dumps(self._by_mutant, indent=1, sort_keys=True), encoding="utf-8")

    def fails_anyway(self, failure: Failure, bench: Workbench) -> bool:
        """Tells whether a test fails without the defect, too: then it has not noticed it. Asked once of each."""
        known = self._fails_anyway.get(failure.tests)
        if known is None:
            known = bench.failure(failure.tests, planted=False) is not None
            self._fails_anyway[failure.tests] = known
        return known


def _read(file: Path) -> dict[str, str]:
    """A file that is not there or not ours costs time, not truth."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(tests) for name, tests in known.items()} if isinstance(known, dict) else {}
