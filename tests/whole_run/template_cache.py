"""Compiled templates that all processes of one run share: to compile them takes each 1.8 s of CPU, to read them 0.03 s."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from jinja2 import FileSystemBytecodeCache

GIVEN_AS = "template_folder"
USED_BY = "simpletuner_fleet.web.frame.environment"


class TemplateFolder:
    """Where they lie while the tests run. None for programs of the tests that other tools start."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def open(self, config: pytest.Config) -> None:
        """The process that starts the others makes it, and removes it at the end."""
        given = getattr(config, "workerinput", {}).get(GIVEN_AS)
        self.path = Path(given or tempfile.mkdtemp(prefix="fleet-templates-"))
        if not given:
            config.add_cleanup(lambda: shutil.rmtree(str(self.path), ignore_errors=True))


TEMPLATES = TemplateFolder()


def use_in_this_process() -> None:
    """Does nothing where no test has to do with pages."""
    if USED_BY in sys.modules and TEMPLATES.path:
        keep_templates(TEMPLATES.path)


def keep_templates(folder: Path) -> None:
    from simpletuner_fleet.web.frame.environment import environment

    environment().bytecode_cache = FileSystemBytecodeCache(str(folder))
