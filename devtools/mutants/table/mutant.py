"""What a planted defect is, and tests that several of them are shown to."""

from typing import NamedTuple

SIM = ("sim:1600",)
LARGE = ("large:400",)
"""For what small worlds hardly show."""
DEFENCES = "tests/sim/test_defences.py"
DEFENDED = (DEFENCES, *SIM)
FOUND = ("tests/sim/test_found_by_simulation.py",)
FOUND_OR_SIM = (*FOUND, *SIM)
CORE_OR_SIM = ("tests/core/jobs/test_lifecycle.py", "tests/core/jobs/test_retry.py", *SIM)
STORE = (
    "tests/store/tables/test_jobs.py",
    "tests/store/tables/test_attempts.py",
    "tests/store/writing/test_transactions.py",
)
INBOX = ("tests/agent/test_inbox.py", *SIM)
STOPPING = ("tests/core/jobs/requests/test_stopping.py", "tests/orchestrator/test_stopping.py")
STORAGE = ("tests/storage/test_fenced.py",)
LEASE = ("tests/agent/test_lease.py",)
PIPELINE = ("tests/store/writing/test_pipeline.py",)
DIRECT_STEPS = ("tests/store/writing/test_direct_steps.py",)
LIVE_ROWS = ("tests/store/writing/test_live_rows.py",)
UNSAVED = ("tests/store/writing/test_unsaved.py",)
API = ("tests/http/api/workers/test_api_byzantine.py", "tests/http/api/workers/test_api_workers.py")


class Mutant(NamedTuple):
    name: str
    defect: str
    file: str
    """Below src/simpletuner_fleet."""
    old: str
    new: str
    tests: tuple[str, ...]
