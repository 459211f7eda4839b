"""Asks a SimpleTuner that is installed for some Python which options it has.

That loads all of SimpleTuner, which takes a while.
"""

import logging
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
LAST_LINES, LONGEST_WORDS = 3, 500

log = logging.getLogger(__name__)


def ask_options(python: str, environment: Mapping[str, str]) -> Options | None:
    """Returns None where it cannot be asked: it is not there, does not load, or is another one altogether."""
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
            lines = answer.stdout.splitlines()
            marked_line = next((line for line in reversed(lines) if line.startswith(MARK.encode())), None)
            if marked_line is None:
                log.warning("%s did not tell the trainer's options. %s", python, _last_words(answer))
                return None
            return read_options(msgspec.json.decode(marked_line[len(MARK) :]))
        except (OSError, subprocess.SubprocessError, ValueError):
            return None


def _last_words(answer: subprocess.CompletedProcess[bytes]) -> str:
    """Returns the lines that it printed last, which people read first.

    A trainer says there which package it lacks, and still ends with 1.
    """
    printed = answer.stdout.strip() or answer.stderr.strip()
    lines = printed.decode(errors="replace").splitlines()[-LAST_LINES:]
    return f"Exit code {answer.returncode}; it said: {' / '.join(lines)[-LONGEST_WORDS:]}"
