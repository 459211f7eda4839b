"""The demo trainer as the worker meets it: a process with a config, an output folder and signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Paths, TrainerError
from simpletuner_fleet.trainers.registry import Registry

PROGRAM = [sys.executable, "-m", "simpletuner_fleet.trainers.demo"]
SHORT: dict[str, Any] = {
    "--max_train_steps": 40,
    "train_batch_size": 16,
    "--checkpointing_steps": 10,
    "validation_steps": 0,
    "num_eval_images": 4,
    "demo_device": "cpu",
}
# Each step waits, so that whoever watches from outside is faster than the training.
SLOW = {**SHORT, "max_train_steps": 100_000, "demo_step_delay_s": 0.01, "checkpointing_steps": 0}
SLOW.pop("--max_train_steps")
SLOW.pop("--checkpointing_steps")
PATIENCE_S = 60.0
LONG_S = 300


def start(folder: Path, settings: dict[str, Any], **environment: str) -> "subprocess.Popen[bytes]":
    folder.mkdir(exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps({**settings, "output_dir": str(folder / "output")}))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")}
    return subprocess.Popen(
        [*PROGRAM, "--config", str(config)],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(folder: Path, settings: dict[str, Any], **environment: str) -> tuple[int, str, str]:
    with start(folder, settings, **environment) as process:
        out, err = process.communicate(timeout=LONG_S)
    return process.returncode, out.decode(), err.decode()


def metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "output" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in (folder / "output").glob("checkpoint-*/.guard"))


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def same_arrays(one: Path, other: Path) -> bool:
    with np.load(one) as first, np.load(other) as second:
        return first.files == second.files and all(np.array_equal(first[n], second[n]) for n in first.files)


def numbers(folder: Path) -> list[tuple[Any, ...]]:
    return [(line["step"], line["loss"], line["lr"], line["grad_norm"]) for line in metrics(folder)]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run(folder, SHORT)[0] == 0
    return folder


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole training, with smaller batches than the default's so that it takes a third of the time."""
    folder = tmp_path_factory.mktemp("learned")
    settings = {
        "train_batch_size": 64,
        "max_train_steps": 900,
        "validation_steps": 450,
        "demo_device": "cpu",
    }
    assert run(folder, settings)[0] == 0
    return folder


def judge(folder: Path) -> tuple[int, dict[str, Any]]:
    judged = subprocess.run([*PROGRAM, "judge", str(folder / "output")], capture_output=True, check=False)
    return judged.returncode, json.loads(judged.stdout)


@pytest.mark.timeout(LONG_S)
def test_the_loss_falls_to_less_than_half(learned: Path) -> None:
    losses = [line["loss"] for line in metrics(learned)]
    first, last = np.mean(losses[: len(losses) // 50]), np.mean(losses[-len(losses) // 10 :])
    assert last < 0.4 * first


@pytest.mark.timeout(LONG_S)
def test_the_finished_models_images_are_recognisable_and_an_unfinished_ones_are_not(
    learned: Path, uninterrupted: Path
) -> None:
    code, verdict = judge(learned)
    assert code == 0, verdict
    assert verdict["recognisable"], verdict
    assert min(verdict["right_by_class"].values()) > 0.6, verdict
    code, verdict = judge(uninterrupted)
    assert code == 1
    assert not verdict["recognisable"]


@pytest.mark.timeout(LONG_S)
def test_a_training_leaves_what_the_contract_names(learned: Path) -> None:
    output = learned / "output"
    assert checkpoints(learned) == ["checkpoint-500", "checkpoint-900"]
    assert [line["step"] for line in metrics(learned)] == list(range(1, 901))
    assert set(metrics(learned)[0]) == {"step", "total", "loss", "lr", "grad_norm", "steps_per_s", "time"}
    pictures = sorted(path.name for path in (output / "validation_images").iterdir())
    assert pictures == ["step_450_shapes_0_16x16.png", "step_900_shapes_0_16x16.png"]
    assert {"model.npz", "model.json", "samples.png"} <= {path.name for path in output.iterdir()}
    assert not list(output.rglob("*tmp"))


def test_stopped_and_resumed_it_ends_with_the_very_bits_of_an_uninterrupted_run(
    tmp_path: Path, uninterrupted: Path
) -> None:
    killed = run(tmp_path, {**SHORT, "demo_crash_signal_at_step": 27})
    assert killed[0] == -signal.SIGKILL
    assert [line["step"] for line in metrics(tmp_path)][-1] == 26
    code, out, _ = run(tmp_path, SHORT)
    assert code == 0
    assert "resumed from checkpoint-20" in out
    for name in ("model.npz", "checkpoint-40/model.npz", "checkpoint-40/optimizer.npz"):
        assert same_arrays(tmp_path / "output" / name, uninterrupted / "output" / name)
    assert (tmp_path / "output" / "samples.png").read_bytes() == (
        uninterrupted / "output" / "samples.png"
    ).read_bytes()
    assert numbers(tmp_path) == numbers(uninterrupted)


def test_sigterm_saves_a_checkpoint_and_ends_with_143_and_the_rest_is_made_as_if_never_stopped(
    tmp_path: Path, uninterrupted: Path
) -> None:
    slowly = {**SHORT, "demo_step_delay_s": 0.05}
    with start(tmp_path, slowly) as process:
        wait_until(lambda: len(metrics(tmp_path)) >= 3)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    stopped = metrics(tmp_path)[-1]["step"]
    assert stopped < 40
    assert f"checkpoint-{stopped}" in checkpoints(tmp_path)
    assert f"saved in checkpoint-{stopped}" in out.decode()
    assert not (tmp_path / "output" / "model.npz").exists()
    assert run(tmp_path, SHORT)[0] == 0
    assert same_arrays(tmp_path / "output" / "model.npz", uninterrupted / "output" / "model.npz")
    assert numbers(tmp_path) == numbers(uninterrupted)


def test_the_signal_file_makes_it_save_and_go_on(tmp_path: Path) -> None:
    asked = tmp_path / "signal.json"
    with start(tmp_path, SLOW, SIMPLETUNER_ACCELERATE_SIGNAL_FILE=str(asked)) as process:
        wait_until(lambda: len(metrics(tmp_path)) >= 3)
        assert checkpoints(tmp_path) == []
        asked.with_suffix(".new").write_text('{"manual_checkpoint": 1}')
        asked.with_suffix(".new").replace(asked)
        wait_until(lambda: checkpoints(tmp_path))
        seen = len(metrics(tmp_path))
        wait_until(lambda: len(metrics(tmp_path)) > seen)
        assert len(checkpoints(tmp_path)) == 1
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_progress_comes_on_stderr_as_tqdm_writes_it(tmp_path: Path) -> None:
    _, _, err = run(tmp_path, SHORT)
    shown = err.split("\r")
    assert shown[-1].startswith("Steps: 100%|██████████| 40/40 [")
    assert "it/s, loss=" in shown[-1]
    assert shown[-1].endswith("]\n")


def test_a_loss_that_is_not_a_number_is_told_as_such_from_then_on(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, {**SHORT, "demo_nan_at_step": 12})
    assert code == 0
    broken_steps = [line["step"] for line in metrics(tmp_path) if np.isnan(line["loss"])]
    assert broken_steps == list(range(12, 41))
    assert "loss=nan" in err


def test_a_failure_shows_its_message_and_only_in_the_attempts_named(tmp_path: Path) -> None:
    settings = {
        **SHORT,
        "demo_fail_at_step": 15,
        "demo_fail_message": "CUDA out of memory. Tried to allocate 2.00 GiB",
        "demo_faults_on_attempts": [1],
    }
    code, _, err = run(tmp_path, settings, SIMPLETUNER_ATTEMPT="1")
    assert code == 1
    assert err.rstrip().endswith("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert run(tmp_path, settings, SIMPLETUNER_ATTEMPT="2")[0] == 0


def test_hanging_it_makes_no_step_and_yet_can_be_stopped(tmp_path: Path) -> None:
    with start(tmp_path, {**SHORT, "demo_hang_at_step": 5}) as process:
        wait_until(lambda: len(metrics(tmp_path)) == 4)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert len(metrics(tmp_path)) == 4
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_told_to_ignore_sigterm_it_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, {**SLOW, "demo_ignore_sigterm": True}) as process:
        wait_until(lambda: metrics(tmp_path))
        process.terminate()
        seen = len(metrics(tmp_path))
        wait_until(lambda: len(metrics(tmp_path)) > seen + 3)
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_memory_asked_for_is_really_held(tmp_path: Path) -> None:
    with start(tmp_path, {**SLOW, "demo_allocate_gb": 0.25}) as process:
        wait_until(lambda: metrics(tmp_path))
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    assert pages * os.sysconf("SC_PAGE_SIZE") > 0.25 * 2**30


def test_a_config_that_cannot_be_used_ends_with_2_and_one_line(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, {"max_train_steps": 0})
    assert (code, err) == (2, "error: max_train_steps must be at least 1, not 0.\n")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("config", "output"):
        (tmp_path / name).mkdir()
    return Paths(attempt_dir=tmp_path, config_dir=tmp_path / "config", output_dir=tmp_path / "output")


def offer(config: dict[str, Any]) -> JobSubmit:
    return JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id="a_1",
        epoch=1,
        config_name="c",
        config=config,
        trainer="demo",
        upload_endpoint="http://orchestrator/api/upload",
        upload_token="ut_own",
    )


def test_the_worker_launches_it_with_its_own_python_into_the_attempts_folder(paths: Paths) -> None:
    trainer = Registry.load(environment=dict(os.environ)).get("demo")
    assert trainer.available()
    launch = trainer.launch(offer({**SHORT, "--output_dir": "/elsewhere"}), paths)
    assert launch.argv == [*PROGRAM, "--config", str(paths.config_file)]
    assert launch.cwd == str(paths.attempt_dir)
    written = json.loads(paths.config_file.read_text())
    assert written == {**SHORT, "output_dir": str(paths.output_dir)}
    finished = subprocess.run(launch.argv, env=launch.env, cwd=launch.cwd, capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert (paths.output_dir / "model.npz").exists()


def test_a_bad_setting_is_refused_before_anything_is_started(paths: Paths) -> None:
    with pytest.raises(TrainerError, match="--seed must be a whole number"):
        Registry.load(environment={}).get("demo").launch(offer({"--seed": 0.5}), paths)
    assert not paths.config_file.exists()


def test_looking_for_the_trainer_imports_no_numpy() -> None:
    looking = (
        "import sys; from simpletuner_fleet.trainers.registry import Registry; "
        "r = Registry.load(environment={}); assert r.get('demo').available(); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", looking], check=False).returncode == 0
