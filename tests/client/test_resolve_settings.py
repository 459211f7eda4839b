"""Every setting is resolved on its own: flag, environment, file, default."""

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.client import resolve_settings
from simpletuner_fleet.client.resolve_settings import Rank
from simpletuner_fleet.settings import GROUPS, Setting, values

PIN = "sha256:" + "ab" * 32
SAMPLES: dict[Any, tuple[str, str, str]] = {
    values.visibility: ("private", "team", "everybody"),
    values.text: ("one", "two", "three"),
    values.path: ("/one", "/two", "/three"),
    values.port: ("1", "2", "3"),
    values.host_and_port: ("one:1", "two:2", "[::3]:3"),
    values.whole: ("1", "2", "3"),
    values.count: ("1", "2", "3"),
    values.positive_count: ("2", "3", "4"),
    values.jobs_at_once: ("auto", "3", "4"),
    values.megabits: ("100", "0.5", "3"),
    values.gigabytes: ("100", "0.5", "3"),
    values.days: ("100", "0.5", "3"),
    values.log_megabytes: ("2", "3", "4"),
    values.seconds: ("1", "2", "3"),
    values.seconds_or_none: ("0", "2", "3"),
    values.money: ("1", "2.5", "3"),
    values.url: ("http://one:1", "http://two:2", "http://three:3"),
    values.urls: ("http://one:1", "http://two:2,http://four:4", "http://three:3"),
    values.fingerprint: (PIN, PIN.replace("ab", "cd"), PIN.replace("ab", "ef")),
    values.log_format: ("json", "text", "json"),
    values.language: ("en", "hi", "ja"),
    values.words: ("one", "two", "three"),
    values.mail_server: ("smtp://one:25", "smtp://two:25", "smtps://three:465"),
    values.mail_address: ("a@one.org", "a@two.org", "a@three.org"),
    values.networks: ("10.0.0.0/8", "10.1.0.0/16", "fd00::/8"),
    values.pairs: ("a=one", "a=two", "a=three"),
    values.interruption_notices: ("off", "aws", "gcp"),
    values.isolation: ("user", "sandbox", "none"),
    values.storage_direct: ("off", "workers", "all"),
    values.job_paths: ("/one:rw", "/two", "/three:ro"),
}
VALUED = [
    pytest.param(group, row, id=f"{group}-{row.name}")
    for group, rows in GROUPS.items()
    for row in rows
    if row.parse is not values.boolean
]
SWITCHES = [
    pytest.param(group, row, id=f"{group}-{row.name}")
    for group, rows in GROUPS.items()
    for row in rows
    if row.parse is values.boolean
]


parser = cache(build_parser)
"""It takes longer to build than to use, and no use changes it."""


def parsed(group: str, *arguments: str) -> argparse.Namespace:
    command = {"client": ["jobs", "list"]}.get(group, [group])
    return parser().parse_args([*command, *arguments])


def resolved(group: str, row: Setting, args: argparse.Namespace, environ: dict[str, str]) -> Any:
    return resolve_settings.resolve(group, args, environ)[0][row.name]


def write(home: Path, group: str, row: Setting, value: str) -> dict[str, str]:
    folder = home / "xdg" / "simpletuner"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(f'[{group}]\n{row.name} = "{value}"\n')
    return {"XDG_CONFIG_HOME": str(home / "xdg")}


def as_parsed(row: Setting, text: str) -> Any:
    return row.parse([text] if row.action == "append" else text)


@pytest.mark.parametrize(("group", "row"), VALUED)
def test_flag_beats_environment_beats_file_beats_default(group: str, row: Setting, home: Path) -> None:
    flag, environment, file = SAMPLES[row.parse]
    environ = {"XDG_CONFIG_HOME": str(home / "nowhere")}
    assert resolved(group, row, parsed(group), environ).source.rank is Rank.DEFAULT
    environ = write(home, group, row, file)
    value_resolved = resolved(group, row, parsed(group), environ)
    assert value_resolved.value == as_parsed(row, file)
    assert value_resolved.source == (Rank.FILE, f"file {home}/xdg/simpletuner/config.toml")
    environ[row.env] = environment
    value_resolved = resolved(group, row, parsed(group), environ)
    assert value_resolved.value == as_parsed(row, environment)
    assert value_resolved.source == (Rank.ENVIRONMENT, f"environment {row.env}")
    if row.flags:
        value_resolved = resolved(group, row, parsed(group, row.flags[-1], flag), environ)
        assert value_resolved.value == as_parsed(row, flag)
        assert value_resolved.source == (Rank.FLAG, f"flag {row.flags[-1]}")


@pytest.mark.parametrize(("group", "row"), SWITCHES)
def test_a_switch_follows_the_same_order(group: str, row: Setting, home: Path) -> None:
    environ = write(home, group, row, "true")
    assert resolved(group, row, parsed(group), environ).value is True
    assert resolved(group, row, parsed(group), {**environ, row.env: "off"}).value is False
    if row.flags:
        assert resolved(group, row, parsed(group, row.flags[-1]), {**environ, row.env: "off"}).value is True


def test_one_flag_leaves_the_environment_of_the_others_alone() -> None:
    """Giving only the URL as a flag must not drop the token, the name and the mode of the environment."""
    environ = {
        "SIMPLETUNER_WORKER_TOKEN": "wt_env",
        "SIMPLETUNER_WORKER_NAME": "gpu-worker-1",
        "SIMPLETUNER_WORKER_PERSISTENT": "true",
        "XDG_CONFIG_HOME": "/nowhere",
    }
    args = parsed("worker", "--orchestrator-url", "https://orchestrator.example.com:8001")
    settings, _ = resolve_settings.resolve("worker", args, environ)
    assert settings["orchestrator_url"].value == "https://orchestrator.example.com:8001"
    assert settings["worker_token"].value == "wt_env"
    assert settings["name"].value == "gpu-worker-1"
    assert settings["persistent"].value is True


def test_a_word_that_means_neither_is_a_usage_error() -> None:
    environ = {"SIMPLETUNER_WORKER_PERSISTENT": "maybe", "XDG_CONFIG_HOME": "/nowhere"}
    with pytest.raises(CliError) as refused:
        resolve_settings.resolve("worker", parsed("worker"), environ)
    assert refused.value.trouble.exit == ExitCode.USAGE
    assert "SIMPLETUNER_WORKER_PERSISTENT" in refused.value.trouble.what


def test_a_secret_with_a_wrong_value_is_not_repeated_in_the_message(home: Path) -> None:
    environ = {"SIMPLETUNER_WORKER_TOKEN": "   ", "XDG_CONFIG_HOME": "/nowhere"}
    with pytest.raises(CliError) as refused:
        resolve_settings.resolve("worker", parsed("worker"), environ)
    assert "got" not in refused.value.trouble.why


@pytest.mark.parametrize("token", [" wt_abc", "wt_abc\n", "\twt_abc \r\n"])
def test_whitespace_around_a_token_is_taken_off_with_a_note(token: str) -> None:
    settings, notes = resolve_settings.resolve(
        "worker", parsed("worker"), {"SIMPLETUNER_WORKER_TOKEN": token, "XDG_CONFIG_HOME": "/nowhere"}
    )
    assert settings["worker_token"].value == "wt_abc"
    assert notes == ["note: whitespace around the token was taken off (environment SIMPLETUNER_WORKER_TOKEN)"]


def test_a_named_file_must_exist_and_replaces_the_usual_one(home: Path) -> None:
    file = home / "mine.toml"
    with pytest.raises(CliError, match=r"mine\.toml"):
        resolve_settings.resolve("server", parsed("server", "--config", str(file)), {})
    file.write_text(
        "[server]\nport = 9001\nssl = true\nssl-san = ['a', 'b']\n[worker]\nlabel = {team = 'nlp'}\n"
    )
    settings, _ = resolve_settings.resolve("server", parsed("server", "--config", str(file)), {})
    assert (settings["port"].value, settings["ssl"].value, settings["ssl_san"].value) == (
        9001,
        True,
        ["a", "b"],
    )
    settings, _ = resolve_settings.resolve("worker", parsed("worker", "--config", str(file)), {})
    assert settings["label"].value == {"team": "nlp"}


@pytest.mark.parametrize(
    "text", ["[server", "[server]\nprot = 1\n", "server = 1\n", '[server]\nport = "x"\n', "\xff\xfe"]
)
def test_a_file_that_cannot_be_used_is_a_usage_error(text: str, home: Path) -> None:
    file = home / "bad.toml"
    file.write_text(text, encoding="utf-16" if "\xff" in text else "utf-8")
    with pytest.raises(CliError) as refused:
        resolve_settings.resolve("server", parsed("server", "--config", str(file)), {})
    assert refused.value.trouble.exit == ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 1\n", "'port' stands outside of any table: put it under [server]"),
        ("[sever]\nport = 1\n", "there is no table 'sever'; did you mean [server]?"),
        ("[server]\nprot = 1\n", "[server] has no setting 'prot'; did you mean 'port'?"),
        ("[server\n", "it is not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)"),
        ("\xff\xfe", "it is not text"),
    ],
)
def test_what_a_file_says_in_vain_is_told_with_what_was_meant(text: str, said: str, home: Path) -> None:
    file = home / "bad.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(CliError) as refused:
        resolve_settings.resolve("server", parsed("server", "--config", str(file)), {})
    assert refused.value.trouble.why == said


def test_a_misspelt_variable_is_told_and_the_trainers_own_are_not() -> None:
    variables = {"SIMPLETUNER_PUBLC_URL": "x", "SIMPLETUNER_SKIP_TORCH": "1", "SIMPLETUNER_LOG_LEVEL": "x"}
    _, notes = resolve_settings.resolve("server", parsed("server"), variables)
    assert notes == ["note: SIMPLETUNER_PUBLC_URL is not a setting; did you mean SIMPLETUNER_PUBLIC_URL?"]


def test_a_guessed_name_is_told_and_what_a_worker_tells_its_trainer_is_not() -> None:
    variables = {"SIMPLETUNER_TOKEN": "x", "SIMPLETUNER_JOB_ID": "j_1", "SIMPLETUNER_LANG": "klingon"}
    _, notes = resolve_settings.resolve("client", argparse.Namespace(), variables)
    assert notes == [
        "note: SIMPLETUNER_TOKEN is not a setting; did you mean SIMPLETUNER_API_TOKEN?",
        "note: SIMPLETUNER_LANG is 'klingon'; expected one of en, pt-BR, hi, zh, ja",
    ]


def test_a_misspelt_setting_of_another_program_is_told_and_keeps_nobody_from_starting(home: Path) -> None:
    file = home / "shared.toml"
    file.write_text("[server]\nport = 9001\n[worker]\nmax-job = 2\n")
    settings, notes = resolve_settings.resolve("server", parsed("server", "--config", str(file)), {})
    assert settings["port"].value == 9001
    assert notes == [f"note: {file}: [worker] has no setting 'max_job'; did you mean 'max_jobs'?"]


def test_a_wrong_value_in_a_file_is_told_with_its_key_and_the_help_that_has_it(home: Path) -> None:
    file = home / "bad.toml"
    file.write_text("[worker]\nmax-jobs = 'two'\n")
    with pytest.raises(CliError) as refused:
        resolve_settings.resolve("worker", parsed("worker", "--config", str(file)), {})
    trouble = refused.value.trouble
    assert trouble.what == f"max_jobs has an invalid value (file {file})"
    assert trouble.next == ("simpletuner worker --help",)


def test_the_defaults_are_the_documented_ones() -> None:
    settings, _ = resolve_settings.resolve(
        "server", parsed("server"), {"XDG_CONFIG_HOME": "/nowhere", "HOME": "/h"}
    )
    assert settings["host"].value == "127.0.0.1"
    assert settings["port"].value == 8001
    assert (settings["heartbeat_interval_s"].value, settings["heartbeat_timeout_s"].value) == (30.0, 120.0)
    assert (settings["max_retries"].value, settings["ephemeral_ttl_s"].value) == (3, 3600.0)
    assert settings["local"].value is None
    settings, _ = resolve_settings.resolve("worker", parsed("worker"), {"XDG_CONFIG_HOME": "/nowhere"})
    assert settings["persistent"].value is False
    assert settings["max_jobs"].value == "auto"


def test_a_list_in_a_file_is_what_is_written_with_commas_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[worker]\norchestrator_url = ["http://one:1", "http://two:2"]\ngpus = [0, 1]\n')
    resolved, _notes = resolve_settings.resolve("worker", argparse.Namespace(config_file=str(file)), {})
    assert resolved["orchestrator_url"].value == "http://one:1,http://two:2"
    assert resolved["gpus"].value == "0,1"
    file.write_text("[worker]\nshutdown_grace = {minutes = 1}\n")
    with pytest.raises(CliError) as refused:
        resolve_settings.resolve("worker", argparse.Namespace(config_file=str(file)), {})
    assert "shutdown_grace has an invalid value" in refused.value.trouble.what
