"""Configs are brought to the server and taken from it by the command line."""

from pathlib import Path

import pytest

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.frame.errors import ExitCode
from tests.cli.conftest import FakeServer, Run, problem


def test_configs_are_brought_and_taken_away_whole(ask: Run, server: FakeServer, tmp_path: Path) -> None:
    bundle = {
        "trainer": "command",
        "settings": {"command": ["python", "train.py"]},
        "dataloader": [{"id": "a"}],
        "files": {"train.py": "print(1)\n"},
        "env": {"A": "b"},
        "resources": {"gpus": 2},
        "datasets": {"cats": "sha256:" + "a" * 64},
        "watchdog": {"nan": "ignore"},
    }
    server.on("GET", "/api/configs/mine", {"name": "mine", "version": 3, **bundle})
    target = tmp_path / "out"
    assert ask("configs", "export", "mine", str(target)).code == 0
    assert ask("configs", "export", "mine", str(target)).code == ExitCode.CONFLICT
    assert ask("configs", "export", "mine", str(target), "--force").code == 0
    server.on("PUT", "/api/configs/again", {"name": "again", "version": 1})
    assert ask("configs", "import", str(target), "--name", "again").code == 0
    assert server.asked("PUT", "/api/configs/again")[0].body == bundle
    assert ask("configs", "validate", str(target), "--json").json == {
        "valid": True,
        "trainer": "command",
        "gpus": 2,
        "checked_against": __version__,
        "findings": [],
    }
    server.on("GET", "/api/configs", {"configs": [{"name": "mine", "version": 3}]})
    assert ask("configs", "list", "-o", "name").out == "mine\n"
    server.on("DELETE", "/api/configs/mine", {})
    assert ask("configs", "delete", "mine").code == 0
    assert ask("configs", "get", "mine").json["version"] == 3


def test_a_config_that_would_escape_its_folder_is_not_written(
    ask: Run, server: FakeServer, tmp_path: Path
) -> None:
    server.on("GET", "/api/configs/evil", {"settings": {}, "files": {"../evil": "x"}})
    assert ask("configs", "export", "evil", str(tmp_path / "out")).code == ExitCode.FAILED
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"settings": {}, "typo": 1}', "no field 'typo'"),
        ('{"traner": "demo", "settings": {}}', "did you mean 'trainer'?"),
        ('{"trainer": "demo", "setings": {}}', "did you mean 'settings'?"),
        ('{"traner": "demo", "seed": 1}', "keeps the trainer's settings under 'settings'"),
        ('{"settings": {}, "resources": {"gpu": 1}}', "did you mean 'gpus'?"),
        ('{"settings": {}, "watchdog": {"xyz": 1}}', "there are nan, stall"),
        ('{"num_processes": "many"}', "num_processes must be a whole number"),
        ('{"trainer": "command", "settings": {}}', "settings.command"),
    ],
)
def test_a_bad_config_is_told_before_anything_is_sent(run: Run, tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    result = run("configs", "validate", str(file))
    assert result.code == ExitCode.USAGE
    assert why in result.err


def test_a_config_that_nobody_could_be_asked_about_says_why(
    ask: Run, server: FakeServer, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_family": "sdxl"}')
    server.on("POST", "/api/config-check", problem(401, "invalid_token", "It has expired."))
    refused = ask("configs", "validate", str(file))
    assert "does not know this API token" in refused.err
    assert "no worker has reported" not in refused.err


@pytest.mark.parametrize(
    "words",
    [
        "configs import ~nobody-at-all/cats",
        "data push ~nobody-at-all/cats",
        "login --token-file ~nobody-at-all/t",
    ],
)
def test_a_path_in_the_home_of_nobody_is_a_path_that_is_not_there(ask: Run, words: str) -> None:
    refused = ask(*words.split())
    assert refused.code in (ExitCode.NOT_FOUND, ExitCode.USAGE)
    assert "~nobody-at-all/" in refused.err
