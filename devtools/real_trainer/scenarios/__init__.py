"""What is tried with the real trainer: a file each, whose `run` takes a stage and returns what was seen.

`run` raises AssertionError where the fleet did not do what it promises. A new file is a new scenario.
"""

import importlib
import pkgutil
from collections.abc import Callable

from devtools.real_trainer.stage import Stage

Scenario = Callable[[Stage], list[str]]


def all_scenarios() -> dict[str, Scenario]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").run for name in names}
