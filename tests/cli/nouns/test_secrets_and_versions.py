"""Secrets and the versions of configs, by command, against the real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from tests.cli.test_against_server import Machine

pytestmark = pytest.mark.e2e
CANARY = "hf_canary_0123456789"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = Machine(tmp_path_factory.mktemp("machine"))
    started.started_info()
    yield started
    started.stop()


def test_a_secrets_life(machine: Machine, tmp_path: Path) -> None:
    done = machine.run("secrets", "set", "hf-token", given=f"{CANARY}\n")
    assert done.code == 0
    assert "stored hf-token, version 1" in done.err
    (tmp_path / "value").write_text(CANARY + "-2\n")
    again = machine.run("secrets", "set", "hf-token", "--from-file", str(tmp_path / "value"), "--json")
    assert again.json["version"] == 2
    listed = machine.run("secrets", "list")
    assert "hf-token" in listed.out
    assert CANARY not in done.out + done.err + again.out + again.err + listed.out
    assert machine.run("secrets", "delete", "hf-token").code == 0
    assert machine.run("secrets", "delete", "hf-token").code == ExitCode.NOT_FOUND
    assert machine.data("secrets", "list")["items"] == []


def test_a_value_is_no_argument_and_is_not_printed_as_curl(machine: Machine) -> None:
    assert machine.run("secrets", "set", "hf-token", CANARY).code == ExitCode.USAGE
    assert machine.run("secrets", "set", "hf-token", given="\n").code == ExitCode.USAGE
    printed = machine.run("secrets", "set", "hf-token", "--curl", given=CANARY)
    assert "VALUE" in printed.out
    assert CANARY not in printed.out
    missing = machine.run("secrets", "set", "hf-token", "--from-file", "/nowhere/at/all")
    assert missing.code == ExitCode.NOT_FOUND


def test_a_config_that_names_an_unknown_secret_cannot_be_submitted(machine: Machine, tmp_path: Path) -> None:
    bundle = {"trainer": "command", "settings": {"command": ["true"]}, "secrets": {"HF_TOKEN": "none-such"}}
    file = tmp_path / "wants.json"
    file.write_text(json.dumps(bundle))
    assert machine.run("configs", "import", str(file)).code == 0
    refused = machine.run("jobs", "submit", "wants")
    assert refused.code != 0
    assert "simpletuner secrets set none-such" in refused.err


@pytest.mark.parametrize("dashes", ["", "--"])
def test_a_folder_is_imported_and_comes_back_whole(machine: Machine, tmp_path: Path, dashes: str) -> None:
    folder = tmp_path / f"flux{len(dashes)}"
    folder.mkdir()
    settings = {
        f"{dashes}data_backend_config": "config/multidatabackend.json",
        f"{dashes}num_processes": 2,
        f"{dashes}learning_rate": 1e-4,
    }
    written = {
        "config.json": settings,
        "multidatabackend.json": [{"id": "images", "type": "local"}],
        "bundle.json": {"trainer": "simpletuner", "env": {"A": "b"}, "secrets": {"HF_TOKEN": "hf"}},
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "prompts.txt").write_text("a cat\n")
    assert machine.run("configs", "validate", str(folder), "--json").json["gpus"] == 2
    assert machine.run("configs", "import", str(folder)).code == 0
    stored = machine.data("configs", "get", folder.name)
    assert stored["settings"] == settings
    assert stored["dataloader"] == written["multidatabackend.json"]
    assert stored["files"] == {"prompts.txt": "a cat\n"}
    assert stored["secrets"] == {"HF_TOKEN": "hf"}
    assert machine.run("configs", "export", folder.name, str(tmp_path / "back")).code == 0
    back = {name: json.loads((tmp_path / "back" / name).read_text()) for name in written}
    assert back == written
    same = machine.run("configs", "import", str(tmp_path / "back"), "--name", folder.name)
    assert "is unchanged" in same.err


def test_versions_are_listed_and_compared(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    for settings in ({"--lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 1}, {"lr": 0.2}):
        file.write_text(json.dumps(settings))
        assert machine.run("configs", "import", str(file)).code == 0
    listed = machine.data("configs", "history", "versions")["items"]
    assert [version["version"] for version in listed] == [3, 2, 1]
    newest = machine.data("configs", "diff", "versions")["items"]
    assert newest == [{"path": "$.settings.seed", "was": 1}]
    chosen = machine.run("configs", "diff", "versions", "1", "2")
    assert [word in chosen.out for word in ("$.settings.lr", "0.1", "0.2")] == [True] * 3
    assert "(absent)" in machine.run("configs", "diff", "versions", "1").out
    assert machine.run("configs", "diff", "versions", "7").code == ExitCode.NOT_FOUND
    assert machine.run("configs", "diff", "versions", "x").code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("content", "field", "advice"),
    [
        ({"settings": {}, "secret": {}}, "$.secret", "did you mean 'secrets'?"),
        ({"settings": {}, "secrets": {"HF TOKEN": "x"}}, "$.secrets.HF TOKEN", "letters, digits"),
        ({"--num_processes": "many"}, "$.settings.num_processes", "whole number"),
        ({"settings": {}, "resources": {"gpus": "two"}}, "$.resources.gpus", "int"),
        ({"trainer": "command", "settings": {}}, "$.settings.command", "a list of strings"),
    ],
)
def test_validation_names_the_field_and_what_to_do(
    machine: Machine, tmp_path: Path, content: object, field: str, advice: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(content))
    result = machine.run("configs", "validate", str(file))
    assert result.code == ExitCode.USAGE
    assert field in result.err
    assert advice in result.err
