"""Finds the example configs that come with the trainer's package, without importing it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from simpletuner_fleet.cli.files.config_layouts import MAIN_FILES
from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.languages import _

PYTHON_VARIABLE = "SIMPLETUNER_TRAINER_PYTHON"
PATIENCE_S = 60.0
WHERE = "import importlib.util as u; s = u.find_spec('simpletuner'); print(*(s.submodule_search_locations if s else ()))"


def example_folder(name: str, python: str | None) -> Path:
    """Returns the folder of one example. Raises an error that names similar ones if there is none."""
    folder = _examples_of(python)
    example = folder / name
    if name in names_in(folder):
        return example
    near = [other for other in names_in(folder) if name.split(".")[0] in other][:5]
    raise fail(
        _("the trainer has no example '%(name)s'", name=name),
        ", ".join(near) if near else str(folder),
        "simpletuner configs examples",
        "E_EXAMPLE",
        ExitCode.NOT_FOUND,
    )


def example_names(python: str | None) -> list[str]:
    return names_in(_examples_of(python))


def names_in(folder: Path) -> list[str]:
    return sorted(
        inner.name
        for inner in folder.iterdir()
        if inner.is_dir() and any((inner / main).is_file() for main in MAIN_FILES)
    )


def _examples_of(python: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    program = python or environ.get(PYTHON_VARIABLE) or sys.executable
    why = ""
    try:
        answer = subprocess.run(
            [program, "-I", "-c", WHERE], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        folder = Path(answer.stdout.strip()) / "examples"
        if answer.stdout.strip() and folder.is_dir():
            return folder
        why = answer.stderr.strip().rpartition("\n")[2] or _("it has no simpletuner package with examples")
    except (OSError, subprocess.SubprocessError) as error:
        why = str(error)
    raise fail(
        _("the trainer's examples are not on this machine"),
        _("checked with %(python)s: %(why)s", python=program, why=why),
        _("name the Python that has the trainer: --trainer-python PATH"),
        "E_EXAMPLE",
        ExitCode.NOT_FOUND,
    )
