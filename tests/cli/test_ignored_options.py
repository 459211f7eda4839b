"""An option that a command could not heed is refused before anything is asked of the server, never ignored."""

import json
from pathlib import Path

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.client import connection, credentials
from simpletuner_fleet.client.credentials import Login, SavedLogins
from tests.cli.conftest import FakeServer, Run

REFUSED = [
    ("--status", "jobs cancel j_1 --status queued"),
    ("--grace", "jobs cancel --all --yes --grace 10m"),
    ("--secret", "jobs publish j_1 --secret NEW"),
    ("--branch", "jobs publish j_1 --branch dev"),
    ("--public", "jobs publish j_1 --public"),
    ("--show", "jobs publish j_1 --show --to hf://me/x"),
    ("--no-labels", "jobs edit j_1 --label rack=r1 --no-labels"),
    ("--checkpoint-first", "jobs act retry --checkpoint-first --yes 1"),
    ("--priority", "jobs act cancel --priority 0 --yes 1"),
    ("--add-tag", "jobs act delete --add-tag paper --yes 1"),
    ("--publish-secret", "jobs submit cats --publish-secret hub"),
    ("--team", "quotas create gpus 4 --user anna --team vision"),
    ("--each", "quotas create gpus 4 --role member --each"),
    ("--pool", "offers one --pool other"),
    ("--no-checkpoint", "workers drain w_1 --no-checkpoint"),
    ("--trainer-python", "configs import . --trainer-python python3"),
    ("--csv", "usage --csv --json"),
    ("--csv", "usage --csv --fields name"),
    ("--without gpus_over", "approvals change-rule ar_1 --gpus-over 4 --without gpus_over"),
    ("--trust-credentials", "backup restore FILE --revocations J --trust-credentials"),
    ("--json", "jobs logs j_1 --json"),
    ("--fields", "jobs logs j_1 --fields at"),
    ("--json", "completion bash --json"),
    *(("-o", f"{words} -o name") for words in ("jobs explain j_1", "jobs events j_1", "status", "doctor")),
    *(("-o", f"{words} -o name") for words in ("audit verify", "limits get", "version")),
]


@pytest.mark.parametrize(("flag", "words"), REFUSED, ids=[words for _flag, words in REFUSED])
def test_an_option_that_could_not_be_heeded_is_refused(
    ask: Run, server: FakeServer, flag: str, words: str
) -> None:
    refused = ask(*words.split())
    assert refused.code == ExitCode.USAGE
    assert flag in refused.err
    assert server.seen == []


UNSET = [
    ("--depends-on", "jobs submit cats --depends-on"),
    ("--resume-from", "jobs submit cats --resume-from"),
    ("--idempotency-key", "jobs submit cats --idempotency-key"),
    ("--label", "jobs submit cats --label"),
    ("--priority", "jobs submit cats --priority"),
    ("--owner", "jobs list --owner"),
    ("--tag", "jobs act delete --yes 2 --tag"),
    ("--user", "quotas create gpus 4 --user"),
    ("--team", "approvals add-rule big --gpus-over 4 --team"),
    ("--gpu", "prices add 2.50 --gpu"),
    ("--database-url", "backup restore FILE --replace --database-url"),
    ("--keys", "backup create FILE --keys"),
]


@pytest.mark.parametrize(("flag", "words"), UNSET, ids=[words for _flag, words in UNSET])
def test_an_option_that_a_script_left_empty_is_no_option_left_out(
    ask: Run, server: FakeServer, flag: str, words: str
) -> None:
    """Else an unset variable would mean every job, no dependency, or the default database."""
    refused = ask(*words.split(), "")
    assert refused.code == ExitCode.USAGE
    assert flag in refused.err
    assert server.seen == []


def test_what_may_be_empty_is_taken_away_so(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "queued"})
    server.on("PATCH", "/api/jobs/j_1", {"id": "j_1", "status": "queued"})
    assert ask("jobs", "edit", "j_1", "--name", "").code == ExitCode.OK
    assert server.seen[-1].body == {"name": None}


def test_an_edit_that_names_no_change_is_refused(ask: Run, server: FakeServer) -> None:
    refused = ask("jobs", "edit", "j_1")
    assert refused.code == ExitCode.USAGE
    assert "nothing to change" in refused.err
    assert server.seen == []


DOCUMENTS = [
    ("attempt", "jobs metrics j_1"),
    ("notes", "jobs events j_1"),
    ("differences", "jobs compare j_1 j_1"),
    ("currency", "usage"),
    ("count", "jobs act cancel"),
    ("count", "jobs cancel --all"),
    ("done", "jobs purge --older-than 30d --yes"),
    ("jobs", "jobs delete j_1"),
    ("python", "version"),
]


@pytest.mark.parametrize(("name", "words"), DOCUMENTS, ids=[words for _name, words in DOCUMENTS])
def test_only_the_fields_that_are_asked_for_are_printed(
    ask: Run, server: FakeServer, name: str, words: str
) -> None:
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "failed"})
    server.on("GET", "/api/jobs/j_1/metrics", {"keys": [], "attempt": 2, "series": {}})
    server.on("GET", "/api/jobs/j_1/events", {"events": [], "notes": [{"kind": "nan"}]})
    server.on("GET", "/api/compare", {"jobs": [], "differences": [{"path": "$.x"}]})
    server.on("GET", "/api/usage", {"lines": [], "total": {}, "currency": "EUR"})
    server.on("POST", "/api/matching/count", {"count": 2})
    server.on("POST", "/api/matching/delete", {"done": 2, "refusals": [], "next": None})
    server.on("DELETE", "/api/jobs/j_1", {"id": "j_1", "deleted_at": ""})
    printed = ask(*words.split(), "--json", "--fields", name)
    assert printed.code == ExitCode.OK, printed.err
    assert list(printed.json) == [name]
    assert printed.json[name]


def test_a_csv_has_the_columns_that_are_asked_for(ask: Run, server: FakeServer) -> None:
    point = {"step": 10, "at": None, "min": 0.1, "max": 0.9, "last": 0.5}
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "failed"})
    server.on("GET", "/api/jobs/j_1/metrics", {"keys": ["loss"], "series": {"loss": [point]}})
    printed = ask("jobs", "metrics", "j_1", "-o", "csv", "--fields", "step,last")
    assert printed.out.splitlines() == ["step,last", "10,0.5"]


def test_an_id_is_printed_for_each_thing_that_has_one_and_nothing_for_others(
    ask: Run, server: FakeServer, tmp_path: Path
) -> None:
    server.on("POST", "/api/queue/submit", {"job_id": None, "would_start_now": True})
    server.on("GET", "/api/configs/cats", {"name": "cats", "settings": {}})
    server.on("GET", "/api/audit/stats", {"by_type": {"job.failed": 3}})
    assert ask("jobs", "submit", "cats", "--dry-run", "-o", "name").out == ""
    assert ask("configs", "get", "cats", "-o", "name").out == "cats\n"
    assert ask("audit", "stats", "-o", "name").out == "job.failed\n"
    written = ask("configs", "export", "cats", str(tmp_path / "cats"), "--json")
    assert [one["path"] for one in written.json["items"]] == [str(tmp_path / "cats" / "config.json")]


@pytest.mark.parametrize(
    ("formats", "words"),
    [
        ("table, json, jsonl or name (ids only)", "jobs list"),
        ("table, json or jsonl", "status"),
        ("csv, table, json, jsonl or name (ids only)", "jobs metrics"),
        ("json", "jobs purge"),
    ],
)
def test_the_help_names_the_forms_of_output_and_which_of_them_is_ids(
    run: Run, capsys: pytest.CaptureFixture[str], formats: str, words: str
) -> None:
    with pytest.raises(SystemExit):
        run(*words.split(), "--help")
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said[said.index("-o FORMAT, --output FORMAT") + 1] == formats


@pytest.mark.parametrize("words", ["--file lycoris_config=x.json", "--leave lycoris_config"])
@pytest.mark.parametrize("kind", ["a bundle", "another trainer"])
def test_choices_about_files_are_refused_where_no_files_are_looked_for(
    ask: Run, server: FakeServer, tmp_path: Path, kind: str, words: str
) -> None:
    folder = tmp_path / "cats"
    folder.mkdir()
    settings = {"lycoris_config": "config/lycoris.json"}
    if kind == "a bundle":
        (folder / "config.json").write_text(json.dumps({"settings": settings}))
    else:
        (folder / "config.json").write_text(json.dumps(settings))
        (folder / "bundle.json").write_text(json.dumps({"trainer": "command"}))
    refused = ask("configs", "import", str(folder), *words.split())
    assert refused.code == ExitCode.USAGE
    assert words.split()[0] in refused.err
    assert server.seen == []


def test_a_file_is_left_to_the_worker_only_for_a_setting_that_the_config_has(
    ask: Run, server: FakeServer, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_family": "sdxl"}))
    refused = ask("configs", "import", str(tmp_path / "config.json"), "--leave", "lycoris")
    assert refused.code == ExitCode.USAGE
    assert "the config has no setting 'lycoris'" in refused.err
    assert server.seen == []


def test_cancelling_named_jobs_for_trial_names_those_that_would_end_and_cancels_none(
    ask: Run, server: FakeServer
) -> None:
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "running"})
    server.on("GET", "/api/jobs/j_2", {"id": "j_2", "status": "completed"})
    tried = ask("jobs", "cancel", "j_1", "j_2", "--dry-run", "-o", "name")
    assert (tried.code, tried.out) == (ExitCode.OK, "j_1\n")
    assert "1 job matches; nothing was changed" in tried.err
    assert {seen.method for seen in server.seen} == {"GET"}


def test_a_version_is_asked_for_by_a_label_in_an_edit_as_in_a_submission(
    ask: Run, server: FakeServer
) -> None:
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "queued"})
    server.on("PATCH", "/api/jobs/j_1", {"id": "j_1", "status": "queued"})
    assert ask("jobs", "edit", "j_1", "--label", "trainer>=4.3").code == ExitCode.OK
    assert server.seen[-1].body == {"worker_labels": {"trainer": ">=4.3"}}
    refused = ask("jobs", "edit", "j_1", "--label", "rack")
    assert refused.code == ExitCode.USAGE
    assert "--label" in refused.err


def test_a_job_for_the_machines_of_one_pool_asks_for_that_pool(ask: Run, server: FakeServer) -> None:
    server.on("POST", "/api/queue/submit", {"job_id": "j_1", "status": "queued"})
    assert ask("jobs", "submit", "cats", "--target", "cloud", "--label", "pool=mine").code == ExitCode.OK
    assert server.seen[-1].body["worker_labels"] == {"pool": "mine"}
    assert ask("jobs", "submit", "cats", "--target", "cloud").code == ExitCode.OK
    assert server.seen[-1].body["worker_labels"] == {"pool": "*"}


def test_logging_out_of_a_server_that_the_url_names_keeps_the_current_one(run: Run) -> None:
    here, there = "https://here:8001", "https://there:8001"
    file = connection.credentials_file()
    credentials.write(
        file, SavedLogins(here, {here: Login("st_1", None, None), there: Login("st_2", None, None)})
    )
    assert run("logout", "--url", there).code == ExitCode.OK
    assert set(credentials.read(file).servers) == {here}
