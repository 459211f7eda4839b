import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings, TrainerError
from simpletuner_fleet.trainers.registry import Registry, plug_ins

WORKER = {
    "PATH": "/usr/bin",
    "HOME": "/home/gpu",
    "HF_TOKEN": "hf_of_the_user",
    "SIMPLETUNER_WORKER_TOKEN": "wt_canary",
    "SIMPLETUNER_WORKER_TOKEN_FILE": "/canary",
    "SIMPLETUNER_ADMIN_TOKEN": "st_canary",
    "SIMPLETUNER_API_TOKEN": "st_canary",
    "SIMPLETUNER_ADMIN": "canary",
    "SIMPLETUNER_DATABASE_URL": "postgresql://canary",
    "SIMPLETUNER_LANG": "en",
}
REAL = ["GPU-1111", "GPU-2222"]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("config", "output"):
        (tmp_path / name).mkdir()
    return Paths(attempt_dir=tmp_path, config_dir=tmp_path / "config", output_dir=tmp_path / "output")


def offer(**changes: Any) -> JobSubmit:
    facts: dict[str, Any] = {
        "job_id": "j_1",
        "attempt": 2,
        "attempt_id": "a_9",
        "epoch": 5,
        "config_name": "c",
        "config": {"command": ["true"]},
        "trainer": "command",
        "upload_endpoint": "http://orchestrator/api/upload",
        "upload_token": "ut_own",
    }
    return JobSubmit(**{**facts, **changes})


def launch(paths: Paths, trainer: str = "command", **changes: Any) -> Launch:
    return Registry.load(environment=WORKER).get(trainer).launch(offer(**changes), paths)


def test_the_command_is_filled_in_word_by_word_and_never_meets_a_shell(paths: Paths) -> None:
    command = ["train", "--config={config}", "{gpus}", "{output_dir}/last", "{other}", "$HOME; rm -rf"]
    launched = launch(paths, config={"command": command}, gpus=REAL, gpu_indices=[0, 1])
    config, output = paths.config_dir / "config.json", paths.output_dir
    assert launched.argv == [
        *("train", f"--config={config}", "GPU-1111,GPU-2222", f"{output}/last", "{other}", "$HOME; rm -rf")
    ]


def test_the_bundles_environment_and_folder_are_filled_in_too(paths: Paths) -> None:
    launched = launch(
        paths,
        env={"WHERE": "{output_dir}", "HOME": "/elsewhere"},
        config={"command": ["x"], "cwd": "{output_dir}"},
    )
    assert launched.env["WHERE"] == str(paths.output_dir)
    assert launched.env["HOME"] == "/elsewhere"
    assert launched.cwd == str(paths.output_dir)


def test_the_environment_holds_no_secret_of_the_worker_but_the_attempts_own_token(paths: Paths) -> None:
    environment = launch(paths).env
    assert "canary" not in json.dumps(environment)
    assert environment["SIMPLETUNER_UPLOAD_TOKEN"] == "ut_own"
    assert environment["SIMPLETUNER_LANG"] == "en"
    assert environment["HF_TOKEN"] == "hf_of_the_user"


def test_the_environment_says_who_the_attempt_is_and_a_bundle_cannot_say_otherwise(paths: Paths) -> None:
    environment = launch(
        paths, num_processes=2, env={"SIMPLETUNER_ATTEMPT_ID": "a_other", "CUDA_VISIBLE_DEVICES": "7"}
    ).env
    variables = {name: value for name, value in environment.items() if name.startswith("SIMPLETUNER_")}
    assert variables == {
        "SIMPLETUNER_LANG": "en",
        "SIMPLETUNER_JOB_ID": "j_1",
        "SIMPLETUNER_ATTEMPT_ID": "a_9",
        "SIMPLETUNER_ATTEMPT": "2",
        "SIMPLETUNER_EPOCH": "5",
        "SIMPLETUNER_OUTPUT_DIR": str(paths.output_dir),
        "SIMPLETUNER_RANK_LOG_DIR": str(paths.rank_log_dir),
        "SIMPLETUNER_CONFIG": str(paths.config_file),
        "SIMPLETUNER_NUM_PROCESSES": "2",
        "SIMPLETUNER_UPLOAD_ENDPOINT": "http://orchestrator/api/upload",
        "SIMPLETUNER_UPLOAD_TOKEN": "ut_own",
    }


@pytest.mark.parametrize(
    ("gpus", "indices", "visible"),
    [
        (REAL, [0, 1], "GPU-1111,GPU-2222"),
        (["GPU-declared-0", "GPU-declared-3"], [0, 3], "0,3"),
        (["", ""], [1, 2], "1,2"),
        ([], [], ""),
        (["MPS-0"], [0], None),
    ],
)
def test_gpus_are_shown_by_uuid_declared_ones_by_index_and_no_gpu_is_no_gpu(
    paths: Paths, gpus: list[str], indices: list[int], visible: str | None
) -> None:
    assert launch(paths, gpus=gpus, gpu_indices=indices).env.get("CUDA_VISIBLE_DEVICES") == visible


def test_the_bundles_files_are_written_into_the_attempts_config_folder(paths: Paths) -> None:
    config = {"command": ["x"], "learning_rate": 1e-4}
    launch(paths, config=config, dataloader=[{"id": "images"}], files={"prompts.txt": "a cat\n"})
    assert json.loads(paths.config_file.read_text()) == config
    assert json.loads(paths.dataloader_file.read_text()) == [{"id": "images"}]
    assert (paths.config_dir / "prompts.txt").read_text() == "a cat\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../up",
        "/etc/passwd",
        "a/b/c",
        "a//b",
        "a/../b",
        "a/",
        ".hidden",
        "a\0b",
        "x" * 129,
        "config.json",
    ],
)
def test_a_files_name_is_an_id_and_never_a_path(paths: Paths, name: str) -> None:
    with pytest.raises(TrainerError):
        launch(paths, files={name: "x"})


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("config.json/b",)])
def test_a_file_that_another_needs_for_a_folder_is_the_configs_fault(
    paths: Paths, names: tuple[str, ...]
) -> None:
    with pytest.raises(TrainerError, match="could not be written"):
        launch(paths, files=dict.fromkeys(names, "x"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {}}, "settings.command must be a list"),
        ({"config": {"command": []}}, "settings.command must be a list"),
        ({"config": {"command": "python train.py"}}, "not one line"),
        ({"config": {"command": ["a", 1]}}, "settings.command must be a list"),
        ({"config": {"command": [""]}}, "empty"),
        ({"config": {"command": ["a\0b"]}}, "NUL"),
        ({"config": {"command": ["a"], "cwd": 5}}, "settings.cwd"),
        ({"config": {"command": ["a"], "cwd": "/no/such"}}, "no folder '/no/such'"),
        ({"env": {"A=B": "x"}}, "no name"),
        ({"env": {"A": "\0"}}, "NUL"),
    ],
)
def test_a_bad_config_is_refused_with_a_clear_message(
    paths: Paths, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainerError, match=message):
        launch(paths, **changes)


def test_without_a_folder_of_its_own_a_command_runs_in_the_attempts(paths: Paths) -> None:
    assert launch(paths).cwd == str(paths.attempt_dir)
    assert launch(paths, config={"command": ["x"], "cwd": "output"}).cwd == str(paths.output_dir)


def test_a_trainer_nobody_has_is_named_with_those_there_are() -> None:
    with pytest.raises(TrainerError, match="no trainer 'magic'; it has accelerate, command, demo, simple"):
        Registry.load(environment=WORKER).get("magic")


def test_simpletuner_gets_its_settings_as_they_are_with_this_attempts_paths(paths: Paths) -> None:
    settings = {
        "--model_family": "flux",
        "learning_rate": 1e-4,
        "--mixed_precision": "no",
        "data_backend_config": "old.json",
    }
    launched = launch(
        paths, "simpletuner", config=settings, dataloader=[{"id": "d"}], num_processes=4, gpus=REAL
    )
    written = json.loads(paths.config_file.read_text())
    assert written == {
        **settings,
        "data_backend_config": str(paths.dataloader_file),
        "--output_dir": str(paths.output_dir),
    }
    assert launched.argv[1:3] == ["-m", "accelerate.commands.launch"]
    assert launched.argv[-2:] == ["-m", "simpletuner.train"]
    assert "--num_processes=4" in launched.argv
    assert "--mixed_precision=no" in launched.argv
    own = paths.config_dir / "accelerate.json"
    assert f"--config_file={own}" in launched.argv, "no config of the user's own is looked at"
    assert {"--gpu_ids=all", "--multi_gpu", "--machine_rank=0"} <= set(launched.argv)
    assert any(word.startswith("--main_process_port=") for word in launched.argv)
    assert json.loads(own.read_text())["gpu_ids"] == "all"
    assert launched.env["CONFIG_PATH"] + ".json" == str(paths.config_file)
    assert launched.env["CONFIG_BACKEND"] == "json"
    assert launched.env["CUDA_VISIBLE_DEVICES"] == "GPU-1111,GPU-2222"


def test_simpletuner_is_available_only_where_its_python_has_it(tmp_path: Path) -> None:
    for package in ("simpletuner", "accelerate"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('looking must not import')")
    with_it = Registry.load(
        environment={**WORKER, "PYTHONPATH": str(tmp_path)}, trainer_python=sys.executable
    )
    without = Registry.load(environment={**WORKER, "PYTHONPATH": ""}, trainer_python=sys.executable)
    nowhere = Registry.load(environment=WORKER, trainer_python="/no/such/python")
    assert {"command", "demo", "simpletuner"} <= set(with_it.available())
    assert "simpletuner" not in without.available()
    assert nowhere.available() == ["command", "demo"]


class Echo:
    name = "echo"

    def __init__(self, surroundings: Surroundings) -> None:
        self.python = surroundings.trainer_python

    def available(self) -> bool:
        return True

    def launch(self, order: JobSubmit, paths: Paths) -> Launch:
        return Launch(argv=["echo", order.job_id], env={}, cwd=str(paths.attempt_dir))


def broken(surroundings: Surroundings) -> Echo:
    raise RuntimeError("not today")


def test_a_plug_in_brings_a_trainer_and_a_broken_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "echo_plug_in", sys.modules[__name__])
    names = [
        EntryPoint("bad", "echo_plug_in:broken", "simpletuner_fleet.trainers"),
        EntryPoint("missing", "no_such_module:x", "simpletuner_fleet.trainers"),
        EntryPoint("echo", "echo_plug_in:Echo", "simpletuner_fleet.trainers"),
    ]
    trainers = plug_ins(names, Surroundings(environment={}, trainer_python="python"))
    assert [trainer.name for trainer in trainers] == ["echo"]
    assert "'bad' cannot be loaded" in caplog.text
    assert Registry(trainers).available() == ["echo"]
