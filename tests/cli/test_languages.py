"""Commands talk to people in their language; what programs read never changes."""

import argparse

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Column, Output
from simpletuner_fleet.cli.nouns.people import usage
from simpletuner_fleet.client import connection, credentials
from simpletuner_fleet.client.credentials import Login, SavedLogins
from simpletuner_fleet.client.troubles import Trouble, format_trouble
from simpletuner_fleet.languages import LANGUAGES, _, speak, translator
from tests.cli.conftest import FakeServer, Run, problem

STUCK = {
    "id": "j_1",
    "name": "cats",
    "status": "queued",
    "explain": {
        "code": "GPU_COUNT_TOO_LARGE",
        "class": "change",
        "params": {"gpus": 16, "largest": 8, "workers": 1},
        "sentence": "too few GPUs: the job needs 16, the largest worker has 8",
        "fixes": [],
    },
}
IN_JAPANESE = "ジョブには GPU が 16 基必要ですが、最大のワーカーは 8 基です"


@pytest.fixture
def in_japanese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMPLETUNER_LANG", "ja")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SIMPLETUNER_LANG", "pt-BR", "erro: "),
        ("LC_ALL", "hi_IN.UTF-8", "त्रुटि: "),
        ("SIMPLETUNER_LANG", "zh", "错误"),
        ("LC_ALL", "ja_JP.UTF-8", "エラー: "),
        ("LC_ALL", "de_DE.UTF-8", "error: "),
    ],
)
def test_errors_follow_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    result = run("worker")
    assert result.code == ExitCode.USAGE
    assert result.err.startswith(said)
    assert "E_USAGE" in result.err


@pytest.mark.usefixtures("in_japanese")
def test_reasons_are_told_in_the_readers_language(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/jobs", {"jobs": [STUCK], "next": None})
    assert IN_JAPANESE in ask("jobs", "list").out


@pytest.mark.usefixtures("in_japanese")
def test_problems_of_the_server_are_told_in_the_readers_language(ask: Run, server: FakeServer) -> None:
    refusal = problem(404, "not_found", "There is no job j_9.")
    server.on("POST", "/api/queue/j_9/priority", refusal)
    server.on("GET", "/api/jobs/j_9", {"id": "j_9", "status": "queued"})
    result = ask("jobs", "set-priority", "j_9", "5")
    assert result.code == ExitCode.NOT_FOUND
    assert "ジョブ j_9 はありません。" in result.err


@pytest.mark.usefixtures("in_japanese")
def test_warnings_about_trust_are_told_in_the_readers_language(run: Run, server: FakeServer) -> None:
    address = server.url.replace("http", "https")
    result = run("jobs", "list", "--url", address, "--ssl-no-verify")
    assert "警告: --ssl-no-verify" in result.err
    assert "WARNING" not in result.err


@pytest.mark.usefixtures("in_japanese")
@pytest.mark.parametrize(
    ("option", "form"), [("--role", "ROLE=GROUP"), ("--team", "TEAM:ROLE=GROUP")], ids=["role", "team"]
)
def test_the_form_of_a_rule_is_told_in_the_readers_language(run: Run, option: str, form: str) -> None:
    result = run("sign-in", "change", "corp", option, "cats=dogs" if "TEAM" in form else "lead")
    assert result.code == ExitCode.USAGE
    assert form in result.err
    assert "not of the form" not in result.err


@pytest.mark.usefixtures("in_japanese")
def test_what_the_core_says_of_a_machine_is_told_in_the_readers_language() -> None:
    said = format_trouble(Trouble("x", "There is no job j_9.", ("Try again.",), "not_found", 3))
    assert "ジョブ j_9 はありません。" in said
    assert "Try again." not in said


@pytest.mark.parametrize("flags", [["--json"], ["-o", "jsonl"], ["-o", "name"]])
def test_what_programs_read_never_changes(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    server.on("GET", "/api/jobs", {"jobs": [STUCK], "next": None})
    english = ask("jobs", "list", *flags).out
    monkeypatch.setenv("SIMPLETUNER_LANG", "hi")
    assert ask("jobs", "list", *flags).out == english


@pytest.mark.usefixtures("in_japanese")
def test_headings_in_a_pipe_and_states_stay_english(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/jobs", {"jobs": [STUCK], "next": None})
    heading, row = ask("jobs", "list").out.splitlines()
    assert heading.startswith("ID\tNAME\tSTATUS\t")
    assert row.split("\t")[2] == "queued"


@pytest.mark.usefixtures("in_japanese")
def test_help_stays_english(run: Run) -> None:
    assert "Submit one" not in run("jobs").err
    assert "OPTIONS" in run("jobs").err


def test_headings_on_a_terminal_are_translated() -> None:
    out = Output(argparse.Namespace())
    speak({"SIMPLETUNER_LANG": "ja"})
    try:
        table = out.rich_table([["j_1"]], [Column("STATUS", lambda item: item)])
    finally:
        speak({})
    assert [column.header for column in table.columns] == ["ステータス"]


@pytest.mark.parametrize(("by", "heading"), [("person", "PESSOA"), ("gpu", "GPU"), ("day", "DIA")])
def test_the_heading_of_what_a_report_is_by_is_translated_as_the_others(by: str, heading: str) -> None:
    speak({"SIMPLETUNER_LANG": "pt-BR"})
    try:
        assert [_(column.title) for column in usage._columns(by, "EUR")][:2] == [heading, "TENTATIVAS"]
    finally:
        speak({})


@pytest.mark.usefixtures("in_japanese")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("teams create vision --weight much", "数値が必要です"),
        ("teams create vision --max-priority 1.5", "整数が必要です"),
        ("webhooks replay siem --seq last", "整数が必要です"),
    ],
)
def test_a_number_that_is_none_is_told_in_the_readers_language(
    ask: Run, server: FakeServer, words: str, why: str
) -> None:
    refused = ask(*words.split())
    assert refused.code == ExitCode.USAGE
    assert why in refused.err
    assert server.seen == []


@pytest.mark.usefixtures("in_japanese")
def test_a_forgotten_token_is_told_in_the_readers_language(run: Run) -> None:
    file = connection.credentials_file()
    here, there = "https://here:8001", "https://there:8001"
    credentials.write(file, SavedLogins(here, {here: Login("st_1"), there: Login("st_2")}))
    assert f"{here} のトークンを破棄しました。現在のサーバー: {there}" in run("logout").err
    assert f"{there} のトークンを破棄しました\n" in run("logout").err


def test_every_language_says_error_in_its_own_way() -> None:
    said = {translator(language.code).text("error: %(what)s", what="x") for language in LANGUAGES}
    assert len(said) == len(LANGUAGES)
