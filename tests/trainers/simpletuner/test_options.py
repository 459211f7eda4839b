"""The trainer is asked for its options in its own Python; here a package that answers as the real one does."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simpletuner_fleet.agent.trainer_options import known_options
from simpletuner_fleet.trainers.registry import Registry
from simpletuner_fleet.trainers.simpletuner.options import ask_options

CMD_ARGS = """
import argparse
print("the trainer talks while it loads")
def get_argument_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_family", choices=["sdxl", "flux"], required=True)
    parser.add_argument("--max_train_steps", type=int, help="From the parser.")
    parser.add_argument("--learning_rate", "--lr", type=float, default=4e-7, help="Not this one.")
    parser.add_argument("--use_ema", type=lambda text: text == "true", nargs="?", const=True, default=False)
    parser.add_argument("--tags", nargs="*")
    return parser
"""


FIELDS = """
class Rule:
    def __init__(self, kind, value, condition=None):
        self.rule_type, self.value, self.condition = type("Kind", (), {"value": kind}), value, condition
class Field:
    arg_name, help_text = "--learning_rate", "How far each\\n  step goes."
    validation_rules = [Rule("min", 0), Rule("max", 1.5), Rule("max", 0.1, {"lora": True}), Rule("pattern", "x")]
class field_registry:
    _fields = {"learning_rate": Field}
"""


@pytest.fixture(scope="module")
def trainer_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("trainer")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "env"], check=True)
    packages = next((home / "env/lib").glob("python*/site-packages"))
    for name, text in {
        "simpletuner/__init__.py": "",
        "simpletuner/helpers/__init__.py": "",
        "simpletuner/helpers/configuration/__init__.py": "",
        "simpletuner/helpers/configuration/cmd_args.py": CMD_ARGS,
        "simpletuner/helpers/configuration/cli_utils.py": "_LEGACY_ARG_HANDLERS = {'validation_steps': 1}",
        "simpletuner/simpletuner_sdk/__init__.py": "",
        "simpletuner/simpletuner_sdk/server/__init__.py": "",
        "simpletuner/simpletuner_sdk/server/services/__init__.py": "",
        "simpletuner/simpletuner_sdk/server/services/field_registry.py": FIELDS,
        "simpletuner-4.10.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: simpletuner\nVersion: 4.10.1\n",
        "accelerate/__init__.py": "",
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    return str(home / "env/bin/python")


def test_every_option_is_told_with_its_kind(trainer_python: str) -> None:
    options = ask_options(trainer_python, os.environ)
    assert options is not None
    assert (options.version, options.also_read) == ("4.10.1", ("validation_steps",))
    kinds = {option.names[0]: (option.kind, option.choices, option.several) for option in options.options}
    assert kinds == {
        "model_family": ("text", ("sdxl", "flux"), False),
        "max_train_steps": ("int", (), False),
        "learning_rate": ("float", (), False),
        "use_ema": ("switch", (), False),
        "tags": ("text", (), True),
    }
    by_name = {option.names[0]: option for option in options.options}
    rate, steps = by_name["learning_rate"], by_name["max_train_steps"]
    assert (rate.help, rate.default, rate.least, rate.most) == ("How far each step goes.", "4e-07", 0, 1.5)
    assert (steps.help, steps.default, steps.least, steps.most) == ("From the parser.", "", None, None)
    assert by_name["use_ema"].default == "false"


def test_a_trainer_that_is_not_there_or_does_not_load_is_none() -> None:
    assert ask_options("/nonexistent/python", os.environ) is None
    assert ask_options(sys.executable, os.environ) is None


def test_a_trainer_that_lacks_a_package_is_told_in_its_own_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = tmp_path / "simpletuner" / "helpers" / "configuration"
    package.mkdir(parents=True)
    (package / "cmd_args.py").write_text(
        "import sys; print('Please install it with: pip install x'); sys.exit(1)"
    )
    assert ask_options(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)}) is None
    assert "Exit code 1; it said: Please install it with: pip install x" in caplog.text


def test_the_question_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    package = tmp_path / "simpletuner" / "helpers" / "configuration"
    package.mkdir(parents=True)
    slow = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    (package / "cmd_args.py").write_text(slow)
    asks = "import os, sys; from simpletuner_fleet.trainers.simpletuner.options import ask_options; "
    asks += "ask_options(sys.executable, os.environ)"
    worker = subprocess.Popen([sys.executable, "-c", asks], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    wait_until(lambda: started.exists() and started.read_text() != "")
    worker.kill()
    worker.wait()
    wait_until(lambda: not is_alive(int(started.read_text())))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """A zombie that nobody has collected is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_asks_once_for_each_release(trainer_python: str, tmp_path: Path) -> None:
    trainers = Registry.load(trainer_python=trainer_python, environment={"PATH": os.defpath})
    first = known_options(trainers, "simpletuner", tmp_path)
    assert first is not None
    file = tmp_path / "options-simpletuner.json"
    file.write_bytes(file.read_bytes().replace(b'"max_train_steps"', b'"from_the_disk"'))
    again = known_options(trainers, "simpletuner", tmp_path)
    assert again is not None
    assert again.options[1].names == ("from_the_disk",)
    file.write_bytes(file.read_bytes().replace(b"4.10.1 for", b"4.10.0 for"))
    assert known_options(trainers, "simpletuner", tmp_path) == first
    # What an older agent has kept tells less than is asked for now.
    file.write_bytes(re.sub(rb',"asked_for":[0-9]+', b"", file.read_bytes().replace(b"How far", b"Kept far")))
    assert known_options(trainers, "simpletuner", tmp_path) == first
    assert known_options(trainers, "command", tmp_path) is None
