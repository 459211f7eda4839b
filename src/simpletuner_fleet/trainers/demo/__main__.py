"""Trains by `python -m simpletuner_fleet.trainers.demo --config config.json`, or judges a model by `… judge DIR`."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

USAGE_ERROR = 2


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="simpletuner_fleet.trainers.demo", description=__doc__)
    parser.add_argument("--config", type=Path, help="train by this config.json")
    commands = parser.add_subparsers(dest="command")
    judging = commands.add_parser("judge", help="say whether a finished model's images are recognisable")
    judging.add_argument("folder", type=Path, help="holds model.npz and model.json")
    given = parser.parse_args(arguments)
    compute_on_one_thread()
    if given.command == "judge":
        return say_verdict(given.folder)
    if given.config is None:
        parser.error("give --config FILE, or judge DIR")
    return run_training(given.config)


def compute_on_one_thread() -> None:
    """Limits NumPy to one thread; it must be called before NumPy is imported.

    For matrices this small more threads are slower where others compute too, and one gives the same bits on any
    number of cores.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def run_training(config: Path) -> int:
    from simpletuner_fleet.trainers.demo.output.checkpoints import CheckpointError
    from simpletuner_fleet.trainers.demo.run import train
    from simpletuner_fleet.trainers.demo.settings import SettingsError

    try:
        return train(config)
    except (SettingsError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR


def say_verdict(folder: Path) -> int:
    from simpletuner_fleet.trainers.demo.judge import judge_model

    verdict = judge_model(folder)
    print(json.dumps({**dataclasses.asdict(verdict), "recognisable": verdict.recognisable}, indent=2))
    return 0 if verdict.recognisable else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
