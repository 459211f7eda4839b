"""What the demo trainer leaves on disk and on the terminal: checkpoints, metrics, images, progress, settings."""

import io
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simpletuner_fleet.trainers.demo.learning.backend import STATE
from simpletuner_fleet.trainers.demo.learning.network import Architecture
from simpletuner_fleet.trainers.demo.output.checkpoints import Checkpoint, CheckpointError, Checkpoints
from simpletuner_fleet.trainers.demo.output.metrics import MetricsLog
from simpletuner_fleet.trainers.demo.output.png import encode_png
from simpletuner_fleet.trainers.demo.output.progress import ProgressBar, line
from simpletuner_fleet.trainers.demo.requests import SAVE, Requests
from simpletuner_fleet.trainers.demo.settings import Settings, SettingsError, parse_settings

SMALL = Architecture(width=2, hidden=2, blocks=1, time_features=2, condition=2)
TQDM = re.compile(
    r"\rSteps: +(\d+)%\|.{10}\| (\d+)/(\d+) \[(\d\d:\d\d)<([\d:?]+), +([\d.?]+)(it/s|s/it), (.*)\]"
)


def at(step: int) -> Checkpoint:
    vector = np.full(SMALL.size, step, dtype=np.float32)
    return Checkpoint(step=step, seed=7, state=dict.fromkeys(STATE, vector))


def test_a_checkpoint_comes_back_as_it_was_saved_and_its_guard_says_complete(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=0)
    folder = checkpoints.save(at(30), SMALL)
    assert folder.name == "checkpoint-30"
    assert (folder / ".guard").read_text() == "complete\n"
    assert json.loads((folder / "training_state.json").read_text())["global_step"] == 30
    loaded = checkpoints.load("latest", SMALL)
    assert loaded is not None
    assert (loaded.step, loaded.seed) == (30, 7)
    assert all(np.array_equal(loaded.state[name], at(30).state[name]) for name in STATE)


def test_only_the_newest_are_kept_and_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (8, 9, 10, 100):
        checkpoints.save(at(step), SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-100"]


def test_what_has_no_guard_or_a_temporary_name_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=0)
    for step in (1, 2):
        checkpoints.save(at(step), SMALL)
    (tmp_path / "checkpoint-2" / ".guard").unlink()
    (tmp_path / "checkpoint-3-tmp").mkdir()
    (tmp_path / "checkpoint-3-tmp" / ".guard").touch()
    loaded = checkpoints.load("latest", SMALL)
    assert loaded is not None
    assert loaded.step == 1
    checkpoints.clean_up()
    assert not (tmp_path / "checkpoint-3-tmp").exists()
    checkpoints.save(at(2), SMALL)
    assert [step for step, _ in checkpoints.complete()] == [1, 2]


def test_resuming_from_a_named_checkpoint_that_is_missing_or_of_another_network_is_refused(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=0)
    assert checkpoints.load("latest", SMALL) is None
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        checkpoints.load("checkpoint-5", SMALL)
    checkpoints.save(at(5), SMALL)
    assert checkpoints.load("checkpoint-5", SMALL) is not None
    assert checkpoints.load(str(tmp_path / "checkpoint-5"), SMALL) is not None
    with pytest.raises(CheckpointError, match="another network"):
        checkpoints.load("latest", Architecture())


def test_after_a_resume_no_step_is_in_the_metrics_twice_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    log = MetricsLog(path, resumed_from=2)
    log.write({"step": 3, "loss": float("nan")})
    log.close()
    assert path.read_text().splitlines() == ['{"step": 1}', '{"step": 2}', '{"step": 3, "loss": NaN}']


def test_the_image_written_is_a_png_with_the_very_pixels() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    data = encode_png(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    position, body = 8, b""
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        kind, content = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack(">I", data[position + 8 + length : position + 12 + length])
        assert checksum == zlib.crc32(kind + content)
        if kind == b"IHDR":
            assert struct.unpack(">IIBB", content[:10]) == (4, 3, 8, 0)
        body += content if kind == b"IDAT" else b""
        position += 12 + length
    rows = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(3, 5)
    assert np.array_equal(rows[:, 1:], pixels)
    assert not rows[:, 0].any()


def test_the_progress_line_has_tqdms_form() -> None:
    shown = line(420, 1000, 12.7, 33.1, "loss=0.123, lr=0.001")
    assert shown == "Steps:  42%|████▏     | 420/1000 [00:12<00:17, 33.10it/s, loss=0.123, lr=0.001]"
    slow = line(1, 8000, 3.0, 0.25, "loss=1")
    assert slow == "Steps:   0%|          | 1/8000 [00:03<8:53:16,  4.00s/it, loss=1]"


def test_progress_is_redrawn_at_most_ten_times_a_second_and_counts_this_process_only() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = ProgressBar(out, total=500, start=300, clock=lambda: now[0])
    for step in range(301, 501):
        now[0] += 0.01
        progress.show(step, "loss=1")
    lines = [TQDM.fullmatch("\r" + text) for text in out.getvalue().split("\r")[1:]]
    assert all(lines)
    assert len(lines) <= 22
    last = lines[-1]
    assert last is not None
    assert last.groups() == ("100", "500", "500", "00:02", "00:00", "100.00", "it/s", "loss=1")


def test_the_signal_file_asks_for_one_checkpoint_each_time_its_number_grows(tmp_path: Path) -> None:
    path = tmp_path / "signal.json"
    requests = Requests(str(path), SAVE)

    def ask(text: str) -> bool:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(path)
        return requests.take()

    assert not requests.take()
    assert ask('{"manual_checkpoint": 1}')
    assert not requests.take()
    assert not ask('{"manual_che')
    assert not ask("[]")
    assert not ask('{"manual_checkpoint": 1, "manual_validation": 4}')
    assert ask('{"manual_checkpoint": 3}')
    assert not requests.take()
    assert not Requests(None, SAVE).take()


def test_settings_are_read_with_or_without_dashes_by_either_name_and_from_text() -> None:
    config: dict[str, Any] = {
        "--max_train_steps": "500",
        "learning-rate": "1e-3",
        "--checkpoint_step_interval": 50,
        "validation_steps": 0,
        "model_family": "flux",
        "seed": None,
    }
    settings, unknown = parse_settings(config)
    assert settings == Settings(
        max_train_steps=500, learning_rate=1e-3, checkpointing_steps=50, validation_steps=0
    )
    assert unknown == ["model_family"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_train_steps": 0}, "max_train_steps must be at least 1"),
        ({"--seed": -1}, "--seed must be a number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"learning_rate": "fast"}, "learning_rate must be a number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number"),
        ({"output_dir": 5}, "output_dir must be text"),
        ({"demo_device": "tpu"}, "demo_device must be one of auto, cpu, cuda"),
        ({"demo_crash_signal": "SIGNOTHING"}, "no signal 'SIGNOTHING'"),
        ({"demo_ignore_sigterm": 1}, "demo_ignore_sigterm must be true or false"),
        ({"demo_faults_on_attempts": 1}, "must be a list"),
        ({"seed": 1, "--seed": 2}, "there twice"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(config)
