from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.configs.bundle import (
    Bundle,
    Resources,
    check_name,
    gpus_of,
    read_bundle,
    setting,
    with_overrides,
)
from simpletuner_fleet.core.errors import Invalid

COMMAND: dict[str, Any] = {"trainer": "command", "settings": {"command": ["true"]}}


def path_of(error: Invalid) -> str:
    return str(error.params["errors"][0]["path"])


def refused(body: Any) -> str:
    """The path that the refusal names."""
    with pytest.raises(Invalid) as caught:
        read_bundle(body)
    assert caught.value.detail
    assert caught.value.params["errors"][0]["detail"] == caught.value.detail
    return path_of(caught.value)


def test_a_whole_bundle_is_read() -> None:
    bundle = read_bundle(
        {
            "trainer": "command",
            "settings": {"command": ["python", "train.py"], "cwd": "/srv"},
            "dataloader": [{"id": "x"}],
            "files": {"prompts.json": "{}"},
            "env": {"HF_HOME": "/cache"},
            "resources": {"gpus": 2, "min_vram_gb": 24, "accelerator": "cuda"},
        }
    )
    assert bundle == Bundle(
        trainer="command",
        settings={"command": ["python", "train.py"], "cwd": "/srv"},
        dataloader=[{"id": "x"}],
        files={"prompts.json": "{}"},
        env={"HF_HOME": "/cache"},
        resources=Resources(gpus=2, min_vram_gb=24, accelerator="cuda"),
    )


def test_a_bare_config_is_taken_as_settings() -> None:
    bare = {"--num_processes": 2, "model_type": "lora", "env": "not a field here", "resources": 5}
    assert read_bundle(bare) == Bundle(settings=bare)
    assert read_bundle({}) == Bundle()


TRAVERSALS = [
    *(
        "",
        ".",
        "..",
        "...",
        "/",
        "//",
        "../x",
        "..\\x",
        "a/b/c",
        "a\\b",
        "/etc/passwd",
        "a/../../b",
        "~",
        "~root",
    ),
    *(
        ".hidden",
        "-rf",
        "_x",
        "C:",
        "C:\\x",
        "a:b",
        "a\0",
        "a\n",
        "a b",
        " a",
        "a ",
        "a%2f",
        "%2e%2e",
        "a;b",
        "$x",
    ),
    *(
        "\u2024\u2024",
        "a\u202eb",
        "\uff0e\uff0e",
        "\u0661",
        "é",
        "a" * 129,
        "*",
        "a?",
        "a|b",
        "`a`",
        "a'b",
        'a"b',
    ),
]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_name(name, "$.name")
    assert path_of(caught.value) == "$.name"
    assert refused({"settings": {}, "files": {name: ""}}) == f"$.files.{name}"
    assert refused({"settings": {}, "trainer": name}) == "$.trainer"


@pytest.mark.parametrize("name", ["a", "A", "0", "my-config", "v1.2_final", "a..b", "a" * 128])
def test_plain_names_are_fine(name: str) -> None:
    assert check_name(name, "$.name") == name


@settings(max_examples=100)
@given(st.text(max_size=10))
def test_whatever_passes_as_a_name_stays_inside_its_folder(name: str) -> None:
    try:
        check_name(name, "$.name")
    except Invalid:
        return
    assert name.isascii()
    assert not set(name) & set("/\\\0:~ \n")
    assert name not in {".", ".."}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (None, "$"),
        ([], "$"),
        ("x", "$"),
        (5, "$"),
        ({"settings": {}, "extra": 1}, "$.extra"),
        ({"settings": []}, "$.settings"),
        ({"settings": {}, "trainer": 5}, "$.trainer"),
        ({"settings": {}, "files": {"a": 5}}, "$.files[...]"),
        ({"settings": {}, "files": []}, "$.files"),
        ({"settings": {}, "env": {"A": None}}, "$.env[...]"),
        ({"settings": {}, "env": {"1A": ""}}, "$.env.1A"),
        ({"settings": {}, "env": {"A=B": ""}}, "$.env.A=B"),
        ({"settings": {}, "env": {"": ""}}, "$.env."),
        ({"settings": {}, "env": {"A": "x\0y"}}, "$.env.A"),
        ({"settings": {}, "env": {"SIMPLETUNER_WORKER_TOKEN": "x"}}, "$.env.SIMPLETUNER_WORKER_TOKEN"),
        ({"settings": {}, "env": {"simpletuner_home": "x"}}, "$.env.simpletuner_home"),
        ({"settings": {}, "resources": 5}, "$.resources"),
        ({"settings": {}, "resources": {"gpus": "2"}}, "$.resources.gpus"),
        ({"settings": {}, "resources": {"gpus": True}}, "$.resources.gpus"),
        ({"settings": {}, "resources": {"gpus": 1.5}}, "$.resources.gpus"),
        ({"settings": {}, "resources": {"gpus": -1}}, "$.resources.gpus"),
        ({"settings": {}, "resources": {"gpus": 1025}}, "$.resources.gpus"),
        ({"settings": {}, "resources": {"min_vram_gb": -1}}, "$.resources.min_vram_gb"),
        ({"settings": {}, "resources": {"min_vram_gb": "24"}}, "$.resources.min_vram_gb"),
        ({"settings": {"num_processes": "two"}}, "$.settings.num_processes"),
        ({"settings": {}, "trainer": "command"}, "$.settings.command"),
        ({"settings": {"command": "ls -l"}, "trainer": "command"}, "$.settings.command"),
        ({"settings": {"command": []}, "trainer": "command"}, "$.settings.command"),
        ({"settings": {"command": ["a", 5]}, "trainer": "command"}, "$.settings.command"),
        ({"settings": {"command": ["a\0"]}, "trainer": "command"}, "$.settings.command"),
        ({"settings": {"command": ["a"], "cwd": 5}, "trainer": "command"}, "$.settings.cwd"),
        ({"settings": {"command": ["a"], "cwd": "/a\0"}, "trainer": "command"}, "$.settings.cwd"),
    ],
)
def test_a_refusal_names_its_path(body: Any, path: str) -> None:
    assert refused(body) == path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["trainer", "settings", "dataloader", "files", "env", "resources"])
setting_names = st.sampled_from(["num_processes", "--num_processes", "command", "cwd", "gpus", "x"])


@settings(max_examples=200)
@given(
    st.one_of(
        json_values,
        st.dictionaries(fields, json_values),
        st.dictionaries(setting_names, json_values),
        st.fixed_dictionaries({"settings": st.dictionaries(setting_names, json_values)}),
    )
)
def test_any_json_at_all_is_read_or_refused_with_a_path(body: Any) -> None:
    try:
        path, gpus = "$", gpus_of(read_bundle(body))
    except Invalid as error:
        path, gpus = path_of(error), 0
    assert path.startswith("$")
    assert 0 <= gpus <= 1024


@pytest.mark.parametrize(
    ("body", "gpus"),
    [
        ({}, 1),
        ({"num_processes": 4}, 4),
        ({"--num_processes": 4}, 4),
        ({"--num_processes": "4"}, 4),
        ({"num_processes": 4.0}, 4),
        ({"settings": {"num_processes": 4}, "resources": {"gpus": 2}}, 2),
        ({"settings": {"--num_processes": 4}, "resources": {"gpus": 0}}, 0),
        ({"settings": {"--num_processes": 4}, "resources": {"min_vram_gb": 24}}, 4),
        ({"settings": {"num_processes": None}}, 1),
        ({"settings": {}, "resources": {"gpus": 0}}, 0),
    ],
)
def test_gpus_come_from_the_resources_else_the_processes_else_one(body: Any, gpus: int) -> None:
    assert gpus_of(read_bundle(body)) == gpus


@pytest.mark.parametrize(
    "asked", [0, -1, "0", 1.5, True, False, "many", "", [], {}, 1025, 10**30, float("inf"), float("nan")]
)
@pytest.mark.parametrize("key", ["num_processes", "--num_processes"])
def test_a_number_of_processes_that_makes_no_sense_is_refused(key: str, asked: Any) -> None:
    assert refused({key: asked}) == "$.settings.num_processes"


def test_a_setting_is_found_with_or_without_dashes() -> None:
    assert setting({"lr": 1}, "lr") == 1
    assert setting({"--lr": 2}, "lr") == 2
    assert setting({"lr": 1, "--lr": 2}, "lr") == 1
    assert setting({}, "lr") is None


@pytest.mark.parametrize(
    ("before", "overrides", "after"),
    [
        ({"--lr": 1}, {"lr": 2}, {"--lr": 2}),
        ({"--lr": 1}, {"--lr": 2}, {"--lr": 2}),
        ({"lr": 1}, {"--lr": 2}, {"lr": 2}),
        ({"lr": 1}, {"lr": 2}, {"lr": 2}),
        ({}, {"--lr": 2, "seed": 3}, {"--lr": 2, "seed": 3}),
        ({"lr": 1, "--lr": 1}, {"lr": 2}, {"lr": 2, "--lr": 2}),
        ({"lr": 1}, {}, {"lr": 1}),
    ],
)
def test_an_override_finds_its_setting_however_it_is_spelled(
    before: dict[str, Any], overrides: dict[str, Any], after: dict[str, Any]
) -> None:
    bundle = Bundle(settings=before)
    assert with_overrides(bundle, overrides).settings == after
    assert bundle.settings is before


@settings(max_examples=100)
@given(
    st.dictionaries(st.sampled_from(["lr", "--lr", "seed"]), st.integers()),
    st.sampled_from(["lr", "--lr"]),
    st.integers(),
)
def test_what_was_overridden_is_what_the_trainer_gets(before: dict[str, Any], key: str, value: int) -> None:
    assert setting(with_overrides(Bundle(settings=before), {key: value}).settings, "lr") == value


def test_an_override_is_checked_like_the_config_itself() -> None:
    with pytest.raises(Invalid) as caught:
        with_overrides(read_bundle({"--num_processes": 1}), {"num_processes": 0})
    assert path_of(caught.value) == "$.settings.num_processes"
    with pytest.raises(Invalid):
        with_overrides(read_bundle(COMMAND), {"command": "rm"})


@pytest.mark.parametrize(
    ("secrets", "path"),
    [
        ({"HF TOKEN": "hf"}, "$.secrets.HF TOKEN"),
        ({"SIMPLETUNER_X": "hf"}, "$.secrets.SIMPLETUNER_X"),
        ({"HF_TOKEN": "hf token"}, "$.secrets.HF_TOKEN"),
        ({"MODE": "hf"}, "$.secrets.MODE"),
        ({f"S{number}": "hf" for number in range(33)}, "$.secrets"),
    ],
)
def test_a_secret_is_a_variable_and_the_name_of_what_is_stored(secrets: dict[str, str], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_bundle({"settings": {}, "env": {"MODE": "x"}, "secrets": secrets})
    assert path_of(caught.value) == path


def test_a_secret_written_where_its_name_belongs_is_not_repeated_in_the_complaint() -> None:
    with pytest.raises(Invalid) as caught:
        read_bundle({"settings": {}, "secrets": {"HF_TOKEN": "hf_the value itself"}})
    assert "itself" not in caught.value.detail


@pytest.mark.parametrize("trainer", ["accelerate", "torchrun"])
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "$.settings.script"),
        ({"script": "a.py", "module": "a"}, "$.settings.script"),
        ({"script": ""}, "$.settings.script"),
        ({"script": 5}, "$.settings.script"),
        ({"script": "--help"}, "$.settings.script"),
        ({"script": "a\0.py"}, "$.settings.script"),
        ({"module": "a/b.py"}, "$.settings.module"),
        ({"module": ["a"]}, "$.settings.module"),
        ({"module": "-m"}, "$.settings.module"),
        ({"module": "m", "args": "--lr 1"}, "$.settings.args"),
        ({"module": "m", "args": ["--lr", 1]}, "$.settings.args"),
        ({"module": "m", "args": ["\0"]}, "$.settings.args"),
        ({"module": "m", "launcher_args": {}}, "$.settings.launcher_args"),
        ({"module": "m", "num_processes": 0}, "$.settings.num_processes"),
        ({"module": "m", "num_processes": "many"}, "$.settings.num_processes"),
        ({"module": "m", "cwd": 5}, "$.settings.cwd"),
    ],
)
def test_a_launchers_bad_setting_is_named(trainer: str, settings: dict[str, Any], path: str) -> None:
    assert refused({"trainer": trainer, "settings": settings}) == path
    assert refused({"trainer": trainer, "settings": settings, "resources": {"gpus": 0}}) == path


def test_mixed_precision_is_one_that_accelerate_knows() -> None:
    body = {"trainer": "accelerate", "settings": {"script": "a.py", "mixed_precision": "int4"}}
    assert refused(body) == "$.settings.mixed_precision"
    for known in ("no", "fp16", "bf16", "fp8", None):
        read_bundle({"trainer": "accelerate", "settings": {"script": "a.py", "mixed_precision": known}})


@pytest.mark.parametrize("trainer", ["accelerate", "torchrun"])
def test_a_launcher_takes_a_script_or_a_module_and_a_gpu_for_each_process(trainer: str) -> None:
    for program in ({"script": "/srv/train.py"}, {"module": "my.train"}):
        bundle = read_bundle(
            {"trainer": trainer, "settings": {**program, "args": ["--lr", "1e-4"], "num_processes": 4}}
        )
        assert gpus_of(bundle) == 4
        with pytest.raises(Invalid):
            with_overrides(bundle, {"args": "--lr 1"})
