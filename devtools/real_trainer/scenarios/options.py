"""The trainer's own parser is asked for its options, as a worker asks it."""

import os

from devtools.real_trainer.environments import python_path
from devtools.real_trainer.stage import Stage
from simpletuner_fleet.trainers.simpletuner.options import ask_options

LOOKED_AT = ("model_family", "max_train_steps", "learning_rate", "use_ema", "output_dir", "optimizer")


def run(stage: Stage) -> list[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(stage.folder),
        "PYTHONPATH": python_path(stage.python),
    }
    options = ask_options(str(stage.python), environment)
    assert options, "it could not be asked"
    assert options.version == stage.version, options.version
    known = {option.names[0]: option for option in options.options}
    assert len(known) > 100, sorted(known)
    stage.seen["options"] = {
        name: {
            "kind": known[name].kind,
            "choices": bool(known[name].choices),
            "required": known[name].required,
        }
        for name in LOOKED_AT
        if name in known
    }
    return [f"{len(known)} options, {len(options.also_read)} older names that it still takes"]
