"""What each release of the real trainer was seen to do, kept beside the tests whose stubs stand for it.

A run of `./dev real-trainer` fails where the trainer does otherwise than is written there; `--record` writes it anew. The
tests in `tests/trainers/test_stubs.py` hold every stub to it.
"""

import json
import re
from pathlib import Path
from typing import Any

from devtools.real_trainer.environments import ROOT

FILE = ROOT / "tests" / "trainers" / "real_trainer_facts.json"
Facts = dict[str, Any]
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): ")
_BAR = re.compile(r"(Epoch[^%|]*Steps:)[^|]*\|[^|]*\|[^\[]*\[([^\]]*)\]")


def recorded(version: str) -> Facts:
    known: dict[str, Facts] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return known.get(version, {})


def record(version: str, seen: Facts) -> None:
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known[version] = {**known.get(version, {}), **seen}
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def differences(version: str, seen: Facts) -> list[str]:
    """Of what this run has looked at; the rest is as it was."""
    known = recorded(version)
    return [
        f"{name}: recorded is {known.get(name)!r}, seen was {value!r}"
        for name, value in seen.items()
        if known.get(name) != value
    ]


def checkpoint_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def bar(log: str) -> str | None:
    """How the last bar of the training is labelled, and which numbers stand in it."""
    drawn = _BAR.findall(_ESCAPES.sub("", log))
    if not drawn:
        return None
    label, inside = drawn[-1]
    keys = [part.partition("=")[0].strip() for part in inside.split(",") if "=" in part]
    return f"{re.sub(r'[0-9]+', 'N', label)} {' '.join(keys)}"


def failure(job: dict[str, Any], exit_code: int | None, lines: str) -> Facts:
    """How a run failed: its class, and the exceptions that it named."""
    raised = [_RAISED.match(line) for line in _ESCAPES.sub("", lines).splitlines()]
    return {
        "class": job["failure"]["class"],
        "exit_code": exit_code,
        "raised": sorted({match[1] for match in raised if match}),
    }
