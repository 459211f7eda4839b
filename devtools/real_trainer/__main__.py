"""`./dev real-trainer`: the fleet with the real SimpleTuner of each supported release, on the CPU. Takes many minutes."""

import argparse
import os
import platform
import shutil
import signal
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from devtools.real_trainer import facts
from devtools.real_trainer.environments import ROOT, STANDINS, NoEnvironment, environment_for, python_path
from devtools.real_trainer.releases import RELEASES, STAND_IN, TriedRelease
from devtools.real_trainer.scenarios import Scenario, all_scenarios
from devtools.real_trainer.stage import Stage

FOLDER = ROOT / ".dev" / "real-trainer"


def main() -> int:
    scenarios = all_scenarios()
    parser = argparse.ArgumentParser(prog="./dev real-trainer", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(scenarios)} (default: all)")
    parser.add_argument("--release", action="append", help="only this one; may be repeated")
    parser.add_argument("--environments", type=Path, default=FOLDER, help="where they are made and kept")
    parser.add_argument(
        "--record", action="store_true", help="write down what the trainer does, instead of comparing it"
    )
    args = parser.parse_args()
    unknown = sorted(set(args.scenario) - set(scenarios))
    if unknown:
        parser.error(f"there is no scenario {unknown[0]}; there are {', '.join(scenarios)}")
    chosen = {name: scenarios[name] for name in args.scenario or scenarios}
    releases = [one for one in RELEASES if not args.release or one.version in args.release]
    # Who ends this command by its id means all that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores", flush=True)
    results = [_try_release(release, args.environments, chosen, args.record) for release in releases]
    return 0 if results and all(results) else 1


def _try_release(
    release: TriedRelease, environments: Path, chosen: dict[str, Scenario], record: bool
) -> bool:
    try:
        python = environment_for(release, environments)
    except NoEnvironment as error:
        print(f"SimpleTuner {release.version}: not tried: {error}", flush=True)
        return False
    stands_in = f", with a stand-in for {STAND_IN}" if str(STANDINS) in python_path(python) else ""
    print(f"SimpleTuner {release.version}{stands_in}", flush=True)
    passed = [_try(release, python, name, scenario, record) for name, scenario in chosen.items()]
    return all(passed)


def _try(release: TriedRelease, python: Path, name: str, scenario: Scenario, record: bool) -> bool:
    folder = FOLDER / "runs" / f"{name}-{release.version}"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    try:
        with Stage(release.version, python, folder) as stage:
            seen = scenario(stage)
        if record:
            facts.record(release.version, stage.seen)
        other = facts.differences(release.version, stage.seen)
        assert not other, f"the trainer does otherwise than the stubs of the tests: {other}"
    except Exception:  # one scenario that fails must not keep the others from being tried
        traceback.print_exc()
        print(f"  FAILED  {name} ({time.monotonic() - began:.0f} s); all of it is in {folder}", flush=True)
        return False
    print(f"  passed  {name} ({time.monotonic() - began:.0f} s)", flush=True)
    for line in seen:
        print(f"          {line}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
