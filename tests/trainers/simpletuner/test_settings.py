"""What an attempt of SimpleTuner is given: the user's config, with every place made whole."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent.attempts.preparation import blame_for
from simpletuner_fleet.core.worker_errors import PathNotGranted
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.data import DatasetOrder
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import other_files
from simpletuner_fleet.trainers.contract import Launch, Paths, TrainerError
from simpletuner_fleet.trainers.registry import Registry
from simpletuner_fleet.trainers.simpletuner.settings import cache_key


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    attempt = tmp_path / "attempt"
    for name in ("config", "output"):
        (attempt / name).mkdir(parents=True)
    return Paths(
        attempt_dir=attempt,
        config_dir=attempt / "config",
        output_dir=attempt / "output",
        cache_dir=tmp_path / "caches" / "key-0",
    )


def order(**changes: Any) -> JobSubmit:
    facts: dict[str, Any] = {
        "job_id": "j_1",
        "attempt": 2,
        "attempt_id": "a_9",
        "epoch": 5,
        "config_name": "c",
        "config": {"model_family": "sdxl"},
        "trainer": "simpletuner",
        "upload_endpoint": "http://orchestrator/api/upload",
    }
    return JobSubmit(**{**facts, **changes})


def launched(paths: Paths, given: JobSubmit) -> tuple[Launch, dict[str, Any], Any]:
    launch = Registry.load(environment={}).get("simpletuner").launch(given, paths)
    data = json.loads(paths.dataloader_file.read_text()) if paths.dataloader_file.exists() else None
    return launch, json.loads(paths.config_file.read_text()), data


def test_its_own_files_are_named_in_full_wherever_it_works(paths: Paths, tmp_path: Path) -> None:
    given = order(
        config={
            "lycoris_config": "config/l.json",
            "webhook_config": "config/other.json",
            "cwd": str(tmp_path),
        },
        files={"l.json": "{}", "captions/all.jsonl": "{}"},
        dataloader=[{"id": "a", "instance_data_dir": "config/captions"}],
    )
    launch, settings, data = launched(paths, given)
    assert launch.cwd == str(tmp_path)
    assert "cwd" not in settings
    assert Path(settings["lycoris_config"]).read_text() == "{}"
    assert settings["webhook_config"] == "config/other.json"
    assert (Path(data[0]["instance_data_dir"]) / "all.jsonl").read_text() == "{}"


def test_a_working_folder_that_is_not_there_is_said_before_anything_starts(paths: Paths) -> None:
    with pytest.raises(TrainerError, match=r"there is no folder '/nonexistent'"):
        launched(paths, order(config={"cwd": "/nonexistent", "seed": 1}))


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        (None, "{attempt}/output"),
        ("output/models", "{attempt}/output/models"),
        ("{output_dir}/x", "{attempt}/output/x"),
        ("../elsewhere", "{attempt}/output"),
        ("/shared/models", "/shared/models/j_1-2"),
    ],
)
def test_no_two_attempts_share_an_output_folder(paths: Paths, chosen: str | None, wanted: str) -> None:
    config = {"seed": 1, **({"--output_dir": chosen} if chosen else {}), "cwd": str(paths.attempt_dir)}
    wanted = wanted.format(attempt=paths.attempt_dir)
    if wanted.startswith("/shared"):
        paths = replace(paths, cache_dir=None)
    _launch, settings, _data = launched(paths, order(config=config))
    assert settings["--output_dir"] == wanted


def test_relative_caches_are_kept_for_the_next_attempt_and_others_stay_where_they_are(paths: Paths) -> None:
    given = order(
        config={"cache_dir_text": "cache/text", "cache_dir_vae": "/mine/vae"},
        dataloader=[
            {"id": "a", "cache_dir_vae": "cache/vae/{model_family}/a", "webshart": {"cache_dir": "cache/w"}},
            {"id": "b", "cache_dir": "../up", "instance_data_dir": "data"},
        ],
    )
    _launch, settings, data = launched(paths, given)
    kept = paths.cache_dir
    assert settings["cache_dir_text"] == f"{kept}/cache/text"
    assert settings["cache_dir_vae"] == "/mine/vae"
    assert data[0] == {
        "id": "a",
        "cache_dir_vae": f"{kept}/cache/vae/{{model_family}}/a",
        "webshart": {"cache_dir": f"{kept}/cache/w"},
    }
    assert data[1] == {"id": "b", "cache_dir": "../up", "instance_data_dir": "data"}


def test_caches_without_a_place_are_kept_too_and_are_no_result(paths: Paths) -> None:
    launched(paths, order())
    (paths.attempt_dir / "cache" / "vae").mkdir()
    (paths.output_dir / "cache" / "latent.pt").write_bytes(b"x")
    (paths.output_dir / "model.safetensors").write_bytes(b"x")
    assert paths.cache_dir is not None
    assert (paths.cache_dir / "cache" / "vae").is_dir()
    assert [file.name for file in other_files(paths.output_dir, [])] == ["model.safetensors"]


@pytest.mark.parametrize("trap", ["a link", "a link that leads nowhere", "a file", "another's folder"])
def test_a_trap_in_place_of_the_output_folder_is_the_jobs_own_fault_and_is_not_walked_into(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """In a folder that is shared, a job knows the names of its next attempts' folders."""
    victim, output = tmp_path / "victim", tmp_path / "shared" / "j_1-2"
    victim.mkdir()
    output.parent.mkdir()
    match trap:
        case "a link":
            output.symlink_to(victim)
        case "a link that leads nowhere":
            output.symlink_to(tmp_path / "nowhere")
        case "a file":
            output.touch()
        case _:
            output.mkdir()
            monkeypatch.setattr(os, "geteuid", lambda: output.stat().st_uid + 1)
    with pytest.raises(TrainerError, match="is there already") as caught:
        launched(paths, order(config={"seed": 1, "output_dir": str(output.parent)}))
    assert blame_for(caught.value) is Blame.JOB
    assert list(victim.iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


def test_nothing_is_made_where_jobs_may_not_write(paths: Paths, tmp_path: Path) -> None:
    def refuse(where: str, path: str) -> None:
        raise PathNotGranted(f"{where} names {path}")

    with pytest.raises(PathNotGranted, match=r"^settings\.output_dir names .*/secret$"):
        launched(
            replace(paths, must_see=refuse), order(config={"seed": 1, "output_dir": f"{tmp_path}/secret"})
        )
    assert not (tmp_path / "secret").exists()


def test_an_output_folder_that_another_node_has_made_is_used(paths: Paths, tmp_path: Path) -> None:
    given = order(config={"seed": 1, "output_dir": str(tmp_path / "shared")})
    for _ in range(2):
        launched(paths, given)
    assert (tmp_path / "shared" / "j_1-2" / "cache").is_symlink()


def test_a_cache_is_shared_only_where_nothing_that_could_matter_differs() -> None:
    first = order(
        config={"resolution": 512, "max_train_steps": 10, "--learning_rate": 1e-4},
        datasets={"pets": DatasetOrder(id="a" * 64, bytes=1, manifest_bytes=1)},
    )
    same = replace(
        first, config={**first.config, "max_train_steps": 99, "--learning_rate": 1e-5}, attempt_id="a_2"
    )
    assert cache_key(first) == cache_key(same)
    others = [
        replace(first, config={**first.config, "resolution": 1024}),
        replace(first, config={**first.config, "a_setting_of_tomorrow": 1}),
        replace(first, config_name="d"),
        replace(first, dataloader=[]),
        replace(first, datasets={"pets": DatasetOrder(id="b" * 64, bytes=1, manifest_bytes=1)}),
    ]
    assert len({cache_key(first), *map(cache_key, others)}) == 6
