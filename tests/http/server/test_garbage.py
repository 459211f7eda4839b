"""The collector as the server sets it, in a process of its own: it must not stay so for other tests."""

import subprocess
import sys

PROGRAM = """
import gc
from simpletuner_fleet.http.server.garbage import tune_garbage_collection
tune_garbage_collection()
full = []
gc.callbacks.append(lambda phase, info: full.append(info) if info["generation"] == 2 and phase == "start" else None)
alive = [[[]] for _ in range(500_000)]
print(gc.get_freeze_count() > 0, len(full))
"""


def test_what_grows_for_good_is_not_looked_through_again_and_again() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "0"]
