"""Asks a SimpleTuner that is installed for some Python which options it has. It loads all of it: this takes a while."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from simpletuner_fleet.core.configs.options import Options, read_options
from simpletuner_fleet.trainers.simpletuner.option_probe import MARK

PROBE = Path(__file__).with_name("option_probe.py")
PATIENCE_S = 900.0
NICENESS = 10


def ask_options(python: str, environment: Mapping[str, str]) -> Options | None:
    """None where it cannot be asked: it is not there, does not load, or is another one altogether."""
    command = [python, "-P", str(PROBE), str(os.getpid())]
    if sys.platform != "win32":
        command = ["nice", "-n", str(NICENESS), *command]
    with tempfile.TemporaryDirectory() as folder:
        try:
            answer = subprocess.run(
                command,
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
                cwd=folder,
                env={**environment, "CUDA_VISIBLE_DEVICES": "", "PATH": environment.get("PATH", os.defpath)},
            )
            marked_line = next(
                line for line in answer.stdout.splitlines()[::-1] if line.startswith(MARK.encode())
            )
            return read_options(msgspec.json.decode(marked_line[len(MARK) :]))
        except (OSError, subprocess.SubprocessError, StopIteration, msgspec.MsgspecError):
            return None
