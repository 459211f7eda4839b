"""accelerate and torchrun, with packages in their place that write down how they were called."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Launch, NodeSpan, Paths, TrainerError
from simpletuner_fleet.trainers.launchers.launcher import free_port
from simpletuner_fleet.trainers.registry import Registry

RECORD = """
import json, os, runpy, sys
with open(os.environ["RECORD"], "w") as file:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "name": __name__}, file)
"""
MODULES = {"accelerate": "accelerate/commands/launch.py", "torchrun": "torch/distributed/run.py"}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    for file in MODULES.values():
        module = folder / file
        module.parent.mkdir(parents=True)
        for parent in (module.parent, module.parent.parent):
            (parent / "__init__.py").touch()
        module.write_text(RECORD)
    return folder


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    attempt = tmp_path / "attempt"
    for name in ("config", "output"):
        (attempt / name).mkdir(parents=True)
    return Paths(attempt_dir=attempt, config_dir=attempt / "config", output_dir=attempt / "output")


def offer(trainer: str, settings: dict[str, Any], **changes: Any) -> JobSubmit:
    facts: dict[str, Any] = {
        "job_id": "j_1",
        "attempt": 1,
        "attempt_id": "a_1",
        "epoch": 3,
        "config_name": "c",
        "config": settings,
        "trainer": trainer,
        "upload_endpoint": "http://orchestrator/api",
        "gpus": ["GPU-1", "GPU-2"],
        "gpu_indices": [0, 1],
        "num_processes": 2,
    }
    return JobSubmit(**{**facts, **changes})


def registry(packages: Path | None = None) -> Registry:
    return Registry.load(
        environment={
            "PATH": "/usr/bin",
            "PYTHONPATH": str(packages or ""),
            "SIMPLETUNER_WORKER_TOKEN": "wt_canary",
        },
        trainer_python=sys.executable,
    )


def launch(trainer: str, settings: dict[str, Any], paths: Paths, **changes: Any) -> Launch:
    return registry().get(trainer).launch(offer(trainer, settings, **changes), paths)


def run(packages: Path, paths: Paths, given: JobSubmit) -> dict[str, Any]:
    record = paths.attempt_dir / "record.json"
    launched = registry(packages).get(given.trainer).launch(given, paths)
    environment = {**launched.env, "RECORD": str(record)}
    subprocess.run(launched.argv, env=environment, cwd=launched.cwd, check=True, timeout=30)
    recorded: dict[str, Any] = json.loads(record.read_text())
    return recorded


def flag(argv: list[str], name: str) -> str:
    return next(word.partition("=")[2] for word in argv if word.startswith(f"{name}="))


def test_accelerate_is_called_with_its_flags_then_the_script_then_its_words(
    packages: Path, paths: Paths
) -> None:
    settings = {
        "script": "train.py",
        "args": ["--config", "{config}", "--out={output_dir}", "--gpus", "{gpus}", "{other}"],
        "mixed_precision": "bf16",
        "launcher_args": ["--use_fsdp"],
    }
    given = offer("accelerate", settings, files={"train.py": "print('hi')"}, env={"WHERE": "{output_dir}"})
    seen = run(packages, paths, given)
    port = flag(seen["argv"], "--main_process_port")
    assert seen["argv"] == [
        f"--config_file={paths.config_dir / 'accelerate.json'}",
        *("--num_processes=2", "--num_machines=1", "--machine_rank=0", f"--main_process_port={port}"),
        *("--mixed_precision=bf16", "--dynamo_backend=no", "--gpu_ids=all", "--use_fsdp"),
        str(paths.config_dir / "train.py"),
        *(
            "--config",
            str(paths.config_file),
            f"--out={paths.output_dir}",
            "--gpus",
            "GPU-1,GPU-2",
            "{other}",
        ),
    ]
    assert seen["name"] == "__main__"
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert seen["env"]["WHERE"] == str(paths.output_dir)
    assert seen["cwd"] == str(paths.attempt_dir)
    assert "canary" not in json.dumps(seen)
    assert json.loads(paths.config_file.read_text()) == settings
    assert (paths.config_dir / "train.py").read_text() == "print('hi')"


def test_torchrun_is_called_with_its_flags_then_the_module_then_its_words(
    packages: Path, paths: Paths
) -> None:
    settings = {"module": "my.train", "args": ["--lr", "1e-4"], "num_processes": 4, "cwd": "{output_dir}"}
    seen = run(packages, paths, offer("torchrun", settings))
    port = flag(seen["argv"], "--master_port")
    assert seen["argv"] == [
        *("--nnodes=1", "--nproc_per_node=4", "--master_addr=127.0.0.1", f"--master_port={port}"),
        *("-m", "my.train", "--lr", "1e-4"),
    ]
    assert seen["cwd"] == str(paths.output_dir)
    assert 1024 <= int(port) <= 65535


@pytest.mark.parametrize(
    ("gpus", "settings", "devices"),
    [
        ([], {}, ["--cpu"]),
        (["GPU-1"], {}, []),
        (["GPU-1", "GPU-2"], {}, ["--multi_gpu"]),
        (["GPU-1", "GPU-2"], {"num_processes": 1}, []),
        (["GPU-1", "GPU-2"], {"launcher_args": ["--use_fsdp"]}, ["--use_fsdp"]),
        (["GPU-1", "GPU-2"], {"launcher_args": ["--use-deepspeed"]}, ["--use-deepspeed"]),
        ([], {"launcher_args": ["--tee", "3"]}, ["--cpu", "--tee", "3"]),
    ],
)
def test_accelerate_uses_the_gpus_of_the_job_and_no_others(
    paths: Paths, gpus: list[str], settings: dict[str, Any], devices: list[str]
) -> None:
    launched = launch(
        "accelerate", {"module": "m", **settings}, paths, gpus=gpus, num_processes=max(1, len(gpus))
    )
    assert launched.argv[launched.argv.index("--gpu_ids=all") + 1 : -2] == devices
    assert "--mixed_precision=no" in launched.argv


def test_every_attempt_has_a_port_of_its_own(paths: Paths) -> None:
    ports = {flag(launch("torchrun", {"module": "m"}, paths).argv, "--master_port") for _ in range(5)}
    assert len(ports) > 1
    assert free_port() > 0


def test_a_script_is_found_in_the_working_folder_or_by_its_whole_path(paths: Paths, tmp_path: Path) -> None:
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.touch()
    for settings in ({"script": str(script)}, {"script": "train.py", "cwd": str(script.parent)}):
        assert launch("torchrun", settings, paths).argv[-1] == str(script)


@pytest.mark.parametrize("trainer", sorted(MODULES))
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either settings.script or settings.module"),
        ({"script": "no.py"}, "settings.script: there is no file .*/no.py"),
        ({"script": "a.py", "args": "--lr 1"}, "settings.args must be a list"),
        ({"module": "m", "cwd": "/no/such"}, "settings.cwd: there is no folder"),
        ({"module": "m", "num_processes": 0}, "num_processes must be 1 or more"),
    ],
)
def test_a_bad_config_is_refused_with_the_field_and_writes_nothing(
    paths: Paths, trainer: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainerError, match=message):
        launch(trainer, settings, paths)
    assert list(paths.config_dir.iterdir()) == []


def test_a_launcher_is_available_only_where_the_trainers_python_has_it(
    packages: Path, tmp_path: Path
) -> None:
    (packages / "torch" / "__init__.py").write_text("raise SystemExit('looking must not import')")
    only_torch = tmp_path / "only_torch"
    only_torch.mkdir()
    (packages / "torch").rename(only_torch / "torch")
    assert set(MODULES) & set(registry().available()) == set()
    assert set(MODULES) & set(registry(only_torch).available()) == {"torchrun"}
    assert set(MODULES) & set(registry(packages).available()) == set()
    (only_torch / "torch").rename(packages / "torch")
    both = registry(packages)
    assert set(MODULES) & set(both.available()) == set(MODULES)
    (packages / "torch").rename(tmp_path / "gone")
    assert set(MODULES) & set(both.available()) == set(MODULES), "asked once and remembered"


@pytest.mark.parametrize("trainer", ["accelerate", "torchrun"])
def test_who_asks_for_logs_of_each_rank_gets_them_where_the_worker_looks(trainer: str, paths: Paths) -> None:
    asked = f"--log_dir={paths.rank_log_dir}"
    plain = {"module": "m", "launcher_args": ["--max_restarts=0"]}
    assert asked not in launch(trainer, plain, paths).argv
    assert asked in launch(trainer, {"module": "m", "launcher_args": ["--tee=3"]}, paths).argv
    assert asked in launch(trainer, {"module": "m", "launcher_args": ["--redirects", "3"]}, paths).argv
    own = {"module": "m", "launcher_args": ["--tee=3", "--log-dir=/elsewhere"]}
    assert asked not in launch(trainer, own, paths).argv


def test_logs_of_ranks_are_found_as_torchrun_and_as_others_write_them(paths: Paths) -> None:
    habits = CheckpointHabits()
    assert habits.rank_logs(paths) == {}
    run = paths.rank_log_dir / "none_x1" / "attempt_0"
    for rank in ("0", "1"):
        (run / rank).mkdir(parents=True)
        for name in ("stdout.log", "stderr.log"):
            (run / rank / name).touch()
    (paths.rank_log_dir / "rank-7.log").touch()
    (paths.rank_log_dir / "other.log").touch()
    assert habits.rank_logs(paths) == {
        0: [run / "0" / "stderr.log", run / "0" / "stdout.log"],
        1: [run / "1" / "stderr.log", run / "1" / "stdout.log"],
        7: [paths.rank_log_dir / "rank-7.log"],
    }


SPAN = NodeSpan(nodes=2, rank=1, address="10.0.0.7", port=40123)


def test_the_parts_of_a_training_over_two_nodes_are_told_where_they_meet(paths: Paths) -> None:
    spanned = replace(paths, span=SPAN)
    settings = {"module": "train"}
    given = {"gpus": ["GPU-1", "GPU-2"], "num_processes": 4, "nodes": 2}
    words = launch("accelerate", settings, spanned, **given).argv
    assert {"--num_processes=4", "--num_machines=2", "--machine_rank=1", "--same_network"} <= {*words}
    assert {"--main_process_ip=10.0.0.7", "--main_process_port=40123", "--multi_gpu"} <= {*words}
    launched = launch("torchrun", settings, spanned, **given)
    assert {"--nnodes=2", "--node_rank=1", "--nproc_per_node=2"} <= {*launched.argv}
    assert {"--master_addr=10.0.0.7", "--master_port=40123"} <= {*launched.argv}
    meeting = {name: launched.env[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK")}
    assert meeting == {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "40123", "NNODES": "2", "NODE_RANK": "1"}
    assert "MASTER_ADDR" not in launch("torchrun", settings, paths, **given).env
    with pytest.raises(TrainerError, match="shared equally"):
        launch("torchrun", {**settings, "num_processes": 3}, spanned, **given)


def test_simpletuner_is_launched_as_one_part_of_several(paths: Paths) -> None:
    words = launch(
        "simpletuner", {"max_train_steps": 1}, replace(paths, span=SPAN), num_processes=4, nodes=2
    ).argv
    assert {"--num_machines=2", "--machine_rank=1", "--main_process_ip=10.0.0.7"} <= {*words}
    assert {"--num_processes=4", "--main_process_port=40123"} <= {*words}


def test_a_config_of_accelerate_agrees_with_its_flags(paths: Paths) -> None:
    launch("accelerate", {"module": "train"}, replace(paths, span=SPAN), num_processes=4, nodes=2)
    written = json.loads((paths.config_dir / "accelerate.json").read_text())
    assert (written["num_machines"], written["machine_rank"]) == (2, 1)
