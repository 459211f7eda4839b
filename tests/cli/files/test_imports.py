"""Configs as people have them: every layout is found, and everything that a config names comes along or is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.cli.files import bundles
from simpletuner_fleet.cli.files.examples import example_folder, example_names
from simpletuner_fleet.cli.files.named_files import FileChoices
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.core.configs.bundle import gpus_of, read_bundle

LYCORIS = '{"algo": "lokr"}'
DATA: list[dict[str, Any]] = [{"id": "text", "dataset_type": "text_embeds", "cache_dir": "cache/text"}]


def write(root: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return root


def test_a_named_environment_of_the_trainer_comes_whole_with_names_seen_from_its_root(tmp_path: Path) -> None:
    root = write(
        tmp_path / "SimpleTuner",
        {
            "config/cats/config.json": {
                "--model_family": "sdxl",
                "--lycoris_config": "config/cats/lycoris.json",
                "--data_backend_config": "config/shared/data.json",
                "--user_prompt_library": "config/prompts.json",
            },
            "config/cats/lycoris.json": LYCORIS,
            "config/shared/data.json": DATA,
            "config/prompts.json": {"a": "a cat"},
        },
    )
    loaded = bundles.load(str(root / "config/cats"))
    assert loaded.name == "cats"
    assert loaded.bundle["settings"] == {
        "--model_family": "sdxl",
        "--lycoris_config": "config/lycoris.json",
        "--data_backend_config": "config/multidatabackend.json",
        "--user_prompt_library": "config/prompts.json",
    }
    assert loaded.bundle["dataloader"] == DATA
    assert set(loaded.bundle["files"]) == {"lycoris.json", "prompts.json"}


def test_a_projects_own_folder_is_its_config_and_a_bare_name_is_looked_for_beneath_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "pets",
        {"config/config.json": {"seed": 1}, "config/dogs/config.toml": 'model_family = "flux"\nseed = 2\n'},
    )
    assert bundles.load(str(tmp_path / "pets")).bundle["settings"] == {"seed": 1}
    assert bundles.load(str(tmp_path / "pets")).name == "pets"
    monkeypatch.chdir(tmp_path / "pets")
    dogs = bundles.load("dogs")
    assert (dogs.name, dogs.bundle["settings"]) == ("dogs", {"model_family": "flux", "seed": 2})


def test_of_several_configs_none_is_guessed(tmp_path: Path) -> None:
    write(tmp_path, {"config/a/config.json": {}, "config/b/config.json": {}})
    with pytest.raises(CliError) as reported:
        bundles.load(str(tmp_path))
    assert "config/a, config/b" in reported.value.trouble.why


def test_what_the_trainers_console_wraps_is_unwrapped(tmp_path: Path) -> None:
    write(tmp_path, {"default.json": {"_metadata": {"name": "default"}, "config": {"--seed": 42}}})
    assert bundles.load(str(tmp_path / "default.json")).bundle == {"settings": {"--seed": 42}}


def test_shell_variables_become_settings_and_what_is_none_becomes_environment(tmp_path: Path) -> None:
    text = """# mine
export MODEL_FAMILY="flux"
export MAX_NUM_STEPS=1e3
export BASE=/data
export OUTPUT_DIR="${BASE}/models"   # where to
export USE_EMA=false
export TRAINING_NUM_PROCESSES=2
export NCCL_DEBUG='INFO'
export HF_TOKEN=hf_canary
export SIMPLETUNER_LOG_LEVEL=DEBUG
TRAINER_EXTRA_ARGS="--lora_rank=16 --fuse_optimizer"
TRAINER_EXTRA_ARGS+=" --noise_offset 0.1"
"""
    loaded = bundles.load(str(write(tmp_path, {"config.env": text})))
    assert loaded.bundle["settings"] == {
        "model_family": "flux",
        "max_train_steps": 1000.0,
        "output_dir": "/data/models",
        "use_ema": False,
        "num_processes": 2,
        "lora_rank": 16,
        "fuse_optimizer": True,
        "noise_offset": 0.1,
    }
    assert loaded.bundle["env"] == {"BASE": "/data", "NCCL_DEBUG": "INFO"}
    assert "canary" not in json.dumps(loaded.bundle)
    assert sum("was left out" in note for note in loaded.notes) == 2


def test_beside_a_config_json_the_variables_say_only_how_it_is_launched(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "config.json": {"model_family": "flux"},
            "config.env": "export TRAINING_NUM_PROCESSES=4\nexport MODEL_FAMILY=sdxl\nexport NCCL_DEBUG=INFO\n",
        },
    )
    loaded = bundles.load(str(tmp_path))
    assert loaded.bundle["settings"] == {"num_processes": 4, "model_family": "flux"}
    assert gpus_of(read_bundle(loaded.bundle)) == 4
    assert loaded.bundle["env"]["NCCL_DEBUG"] == "INFO"
    assert "files" not in loaded.bundle


def test_a_missing_file_is_asked_for_with_the_places_looked_at_and_may_be_given_or_left(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "mine", {"config.json": {"lycoris_config": "config/gone/lycoris.json"}})
    with pytest.raises(CliError) as reported:
        bundles.load(str(folder))
    trouble = reported.value.trouble
    assert trouble.exit == ExitCode.NOT_FOUND
    assert str(tmp_path / "config/gone/lycoris.json") in trouble.why
    assert any("--file lycoris_config=PATH" in step for step in trouble.next)
    other = write(tmp_path, {"else.json": LYCORIS}) / "else.json"
    given = bundles.load(str(folder), FileChoices(files={"lycoris_config": str(other)}))
    assert given.bundle["files"] == {"else.json": LYCORIS}
    assert given.bundle["settings"] == {"lycoris_config": "config/else.json"}
    left = bundles.load(str(folder), FileChoices(left={"lycoris_config"}))
    assert left.bundle == {"settings": {"lycoris_config": "config/gone/lycoris.json"}}
    assert any("left to the worker" in note for note in left.notes)


def test_two_files_of_one_name_are_both_kept(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a/x.json": "{}",
            "b/x.json": "[]",
            "mine/config.json": {"lycoris_config": "a/x.json", "webhook_config": "b/x.json"},
        },
    )
    bundle = bundles.load(str(tmp_path / "mine")).bundle
    assert bundle["settings"] == {"lycoris_config": "config/x.json", "webhook_config": "config/x-2.json"}
    assert bundle["files"] == {"x.json": "{}", "x-2.json": "[]"}


def test_models_and_pictures_are_left_to_the_worker_and_said_while_captions_come_along(
    tmp_path: Path,
) -> None:
    data = [
        {"id": "pictures", "type": "local", "instance_data_dir": "/data/cats", "cache_dir_vae": "cache/vae"},
        {"id": "captions", "type": "local", "instance_data_dir": "config/mine/captions"},
    ]
    write(
        tmp_path,
        {
            "config/mine/config.json": {
                "init_lora": "output/before/a.safetensors",
                "pretrained_model_name_or_path": "a/b",
            },
            "config/mine/multidatabackend.json": data,
            "config/mine/captions/all.jsonl": '{"caption": "a cat"}\n',
        },
    )
    loaded = bundles.load(str(tmp_path / "config/mine"))
    assert loaded.bundle["dataloader"][1]["instance_data_dir"] == "config/captions"
    assert loaded.bundle["files"] == {"captions/all.jsonl": '{"caption": "a cat"}\n'}
    said = [note for note in loaded.notes if "left to the worker" in note]
    assert [note.split(":")[0] for note in said] == ["init_lora", "instance_data_dir"]


def test_what_is_exported_is_imported_as_it_was(tmp_path: Path) -> None:
    bundle = {
        "settings": {
            "lycoris_config": "config/l.json",
            "data_backend_config": "config/multidatabackend.json",
        },
        "dataloader": [{"id": "a", "instance_data_dir": "config/captions"}],
        "files": {"l.json": "{}", "captions/all.jsonl": "{}\n"},
        "env": {"A": "b"},
    }
    bundles.save(bundle, tmp_path / "out", force=False)
    assert bundles.load(str(tmp_path / "out")).bundle == bundle


def test_a_loose_comma_is_forgiven_and_said_and_a_string_is_left_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": '{"validation_prompt": "one,} two,]", "seed": 1,\n}'})
    loaded = bundles.load(str(tmp_path))
    assert loaded.bundle["settings"] == {"validation_prompt": "one,} two,]", "seed": 1}
    assert len(loaded.notes) == 1


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("config.json", '{"learning_rate": 1e400}', "the number 1e400 is too large"),
        ("config.json", '{"seed": ' + "9" * 30 + "}", f"the number {'9' * 30} is too large"),
        ("config.json", '{"seed": ' + "9" * 9000 + "}", f"the number {'9' * 40}… is too large"),
        ("config.json", '{"learning_rate": NaN}', "NaN is not a JSON number"),
        ("config.json", "[" * 100_000, "it is nested too deeply"),
        ("config.json", " \n", "it is empty"),
        ("config.toml", "learning_rate = inf\n", "Infinity is not a JSON number"),
        ("job.yaml", "seed: 1\n", "it is YAML, and configs are JSON, TOML or config.env"),
    ],
)
def test_a_file_that_no_server_could_keep_is_refused_with_what_is_wrong(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CliError) as refused:
        bundles.load(str(tmp_path / name))
    assert refused.value.trouble.why == why


def test_a_picture_in_the_folder_stays_behind_and_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {"seed": 1}, "notes.txt": "x"})
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\xff\xfe")
    loaded = bundles.load(str(tmp_path))
    assert loaded.bundle["files"] == {"notes.txt": "x"}
    assert "cat.png is not included" in loaded.notes[0]


@pytest.fixture(scope="module")
def trainer_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of its own that has a package laid out as the trainer's is."""
    home = tmp_path_factory.mktemp("trainer")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "env"], check=True)
    package = next((home / "env/lib").glob("python*/site-packages")) / "simpletuner"
    write(
        package,
        {
            "__init__.py": "raise SystemExit('the package is never loaded')",
            "examples/sdxl.lycoris-lokr/config.json": {
                "data_backend_config": "config/examples/data+512px.json",
                "lycoris_config": "config/examples/sdxl.lycoris-lokr/lycoris_config.json",
                "output_dir": "output/examples/sdxl.lycoris-lokr",
            },
            "examples/sdxl.lycoris-lokr/lycoris_config.json": LYCORIS,
            "examples/data+512px.json": DATA,
            "examples/flux.peft-lora/config.json": {"data_backend_config": "config/examples/forgotten.json"},
            "examples/scripts/run.py": "",
        },
    )
    return str(home / "env/bin/python")


def test_an_example_of_the_trainer_comes_with_all_that_its_package_holds(trainer_python: str) -> None:
    assert example_names(trainer_python) == ["flux.peft-lora", "sdxl.lycoris-lokr"]
    loaded = bundles.load(str(example_folder("sdxl.lycoris-lokr", trainer_python)))
    assert loaded.bundle["dataloader"] == DATA
    assert loaded.bundle["files"] == {"lycoris_config.json": LYCORIS}
    assert loaded.bundle["settings"]["lycoris_config"] == "config/lycoris_config.json"


def test_what_an_examples_package_lacks_is_left_to_the_worker_and_said(trainer_python: str) -> None:
    loaded = bundles.load(str(example_folder("flux.peft-lora", trainer_python)))
    assert loaded.bundle["settings"] == {"data_backend_config": "config/examples/forgotten.json"}
    assert "left to the trainer on the worker" in loaded.notes[0]


def test_an_unknown_example_and_a_python_without_the_trainer_say_what_there_is(trainer_python: str) -> None:
    with pytest.raises(CliError) as reported:
        example_folder("sdxl", trainer_python)
    assert reported.value.trouble.why == "sdxl.lycoris-lokr"
    with pytest.raises(CliError) as reported:
        example_names("/nonexistent/python")
    assert "/nonexistent/python" in reported.value.trouble.why


@pytest.mark.parametrize("folder", [".", "./", "~nobody-of-that-name/data"])
def test_any_folder_that_a_dataloader_names_is_looked_for_or_left_to_the_worker(
    tmp_path: Path, folder: str
) -> None:
    data = [{"id": "cats", "type": "local", "instance_data_dir": folder}]
    files = {"config.json": {"model_family": "sdxl"}, "multidatabackend.json": data, "cat.png": "no text"}
    loaded = bundles.load(str(write(tmp_path / "cats", files)))
    assert loaded.bundle["dataloader"] == data
    assert any(note.startswith(f"instance_data_dir: {folder} is left to the worker") for note in loaded.notes)


@pytest.mark.parametrize("file", [".", "~nobody-of-that-name/lycoris.json"])
def test_a_setting_that_names_no_file_is_said_to_miss_it(tmp_path: Path, file: str) -> None:
    root = write(tmp_path / "cats", {"config.json": {"lycoris_config": file}})
    with pytest.raises(CliError) as refused:
        bundles.load(str(root))
    assert refused.value.trouble.what == "the config names files that are missing: lycoris_config"


@pytest.mark.parametrize("name", ["my prompts.txt", "提示.txt", "-notes.txt"])
def test_a_file_whose_name_no_bundle_can_have_is_said(tmp_path: Path, name: str) -> None:
    folder = write(
        tmp_path / "cats", {"config.json": {"model_family": "sdxl"}, name: "a cat", "more.txt": "x"}
    )
    loaded = bundles.load(str(folder))
    assert loaded.bundle["files"] == {"more.txt": "x"}
    assert [note for note in loaded.notes if name in note and "is not included" in note]


def test_further_arguments_are_read_as_a_shell_passes_them_on(tmp_path: Path) -> None:
    """A shell that puts a variable into a command reads no quotes in it: an apostrophe is one."""
    text = """MODEL_FAMILY=sdxl
TRAINER_EXTRA_ARGS="--instance_prompt=dog's --tracker_run_name=\\"it is\\" --seed 5"
"""
    settings = bundles.load(str(write(tmp_path, {"config.env": text}))).bundle["settings"]
    assert (settings["instance_prompt"], settings["seed"]) == ("dog's", 5)


def test_an_export_writes_through_no_link(tmp_path: Path) -> None:
    """As somebody else may have left one in a folder that all can write to; it need not lead to a file yet."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").symlink_to(tmp_path / "theirs")
    with pytest.raises(CliError) as refused:
        bundles.save({"settings": {"seed": 1}}, tmp_path / "out", force=False)
    assert refused.value.trouble.exit == ExitCode.CONFLICT
    bundles.save({"settings": {"seed": 1}}, tmp_path / "out", force=True)
    assert not (tmp_path / "theirs").exists()
    assert bundles.load(str(tmp_path / "out")).bundle["settings"] == {"seed": 1}
