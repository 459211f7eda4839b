"""What each command asks the server, and how it shows the answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.cli.jobs.job_text import explained
from simpletuner_fleet.cli.main import main
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.trust import Choices
from tests.cli.conftest import Answer, CutOff, FakeServer, Run, Seen, problem

WORKER: dict[str, Any] = {
    "id": "w_abc123",
    "name": "gpu-worker-1",
    "status": "idle",
    "worker_type": "persistent",
    "gpu_count": 2,
    "gpu_name": "A100",
    "labels": {"location": "datacenter-a"},
    "last_heartbeat": "2024-01-15T10:30:00Z",
}
JOB: dict[str, Any] = {
    "id": "j_abcdef",
    "config_name": "my-training-config",
    "status": "running",
    "target": "worker",
    "priority": 0,
    "attempt": 1,
    "max_retries": 3,
    "worker_id": "w_abc123",
    "gpus": ["GPU-1"],
    "progress": {"step": 1240, "total": 5000, "loss": 0.123456},
    "error": None,
    "created_at": "2024-01-15T10:30:00Z",
    "started_at": "2024-01-15T10:30:05Z",
    "finished_at": None,
}
SUBMITTED = {"success": True, "job_id": "j_new", "status": "queued", "queue_position": 1}


@pytest.fixture
def fleet(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/admin/workers", {"workers": [WORKER]})
    server.on("GET", "/api/jobs", {"jobs": [JOB, {**JOB, "id": "j_abxyz"}], "next": None})
    server.on("GET", "/api/jobs/j_abcdef", JOB)
    server.on("GET", "/api/jobs/j_abxyz", {**JOB, "id": "j_abxyz"})
    server.on("POST", "/api/queue/submit", SUBMITTED)
    return server


def test_the_token_goes_in_the_authorization_header(ask: Run, fleet: FakeServer) -> None:
    assert ask("workers", "list").code == 0
    assert fleet.seen[0].headers["authorization"] == "Bearer st_secret"


def test_a_list_is_tab_separated_when_piped(ask: Run, fleet: FakeServer) -> None:
    lines = ask("workers", "list").out.splitlines()
    assert lines[0].split("\t") == ["ID", "NAME", "STATUS", "TYPE", "GPUS", "HEARTBEAT", "LABELS"]
    assert lines[1].split("\t")[:5] == ["w_abc123", "gpu-worker-1", "idle", "persistent", "2 x A100"]


def test_json_names_its_schema(ask: Run, fleet: FakeServer) -> None:
    assert ask("workers", "list", "--json").json == {"schema": "workers.v1", "items": [WORKER]}
    assert ask("jobs", "get", "j_abcdef", "-o", "json").json == JOB


def test_jsonl_name_and_fields(ask: Run, fleet: FakeServer) -> None:
    assert [json.loads(line)["id"] for line in ask("jobs", "list", "-o", "jsonl").out.splitlines()] == [
        "j_abcdef",
        "j_abxyz",
    ]
    assert ask("jobs", "list", "-o", "name").out == "j_abcdef\nj_abxyz\n"
    assert ask("jobs", "list", "--fields", "id,progress.step").out.splitlines()[1] == "j_abcdef\t1240"
    assert ask("jobs", "list", "--json", "--fields", "id,progress.loss").json["items"][0] == {
        "id": "j_abcdef",
        "progress.loss": 0.123456,
    }


def test_jobs_show_progress_and_reason(ask: Run, server: FakeServer) -> None:
    waiting = {
        **JOB,
        "status": "queued",
        "progress": None,
        "explain": {"code": "NO_WORKERS", "sentence": "no worker has joined yet"},
    }
    server.on("GET", "/api/jobs", {"jobs": [JOB, waiting], "next": None})
    out = ask("jobs", "list").out
    assert "1,240/5,000 25% loss 0.1235" in out
    assert "no worker has joined yet" in out


def test_a_long_list_is_read_page_by_page(ask: Run, server: FakeServer) -> None:
    def page(seen: Seen) -> dict[str, Any]:
        start = int(seen.query.get("cursor", ["0"])[0])
        size = int(seen.query["limit"][0])
        jobs = [{**JOB, "id": f"j_{n}"} for n in range(start, min(start + size, 450))]
        return {"jobs": jobs, "next": str(start + size) if start + size < 450 else None}

    server.on("GET", "/api/jobs", page)
    assert len(ask("jobs", "list", "--limit", "1000", "-o", "name").out.split()) == 450
    assert len(ask("jobs", "list", "--limit", "7", "-o", "name").out.split()) == 7


def test_a_job_is_found_by_a_unique_beginning(ask: Run, fleet: FakeServer) -> None:
    assert ask("jobs", "get", "abc", "--json").json["id"] == "j_abcdef"
    twice = ask("jobs", "get", "j_ab")
    assert twice.code == ExitCode.USAGE
    assert "j_abcdef, j_abxyz" in twice.err
    assert ask("jobs", "get", "j_zzz").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("nothing", ["", "j_"])
def test_an_empty_id_is_no_jobs_beginning_even_where_there_is_only_one(
    ask: Run, fleet: FakeServer, nothing: str
) -> None:
    fleet.on("GET", "/api/jobs", {"jobs": [JOB], "next": None})
    result = ask("jobs", "cancel", nothing)
    assert result.code == ExitCode.NOT_FOUND
    assert f"there is no job '{nothing}'" in result.err


@pytest.mark.parametrize("called", ["w_abc123", "gpu-worker-1"])
def test_a_worker_is_called_by_id_or_name(ask: Run, fleet: FakeServer, called: str) -> None:
    fleet.on("POST", "/api/admin/workers/w_abc123/drain", {**WORKER, "status": "draining"})
    result = ask("workers", "drain", called, "--note", "new fans")
    assert result.code == 0
    assert fleet.asked("POST", "/api/admin/workers/w_abc123/drain")[0].body == {"note": "new fans"}
    assert ask("workers", "get", called, "--json").json == WORKER
    assert ask("workers", "get", "nobody").code == ExitCode.NOT_FOUND


def test_creating_a_worker_shows_the_token_once(ask: Run, fleet: FakeServer) -> None:
    made = {"worker_id": "w_1", "token": "wt_x", "name": "a", "connection_command": "simpletuner worker …"}
    fleet.on("POST", "/api/admin/workers", Answer(201, made))
    result = ask("workers", "create", "a", "--type", "ephemeral", "--label", "team=nlp", "--label", "b=c")
    assert fleet.asked("POST", "/api/admin/workers")[0].body == {
        "name": "a",
        "worker_type": "ephemeral",
        "labels": {"team": "nlp", "b": "c"},
    }
    assert "TOKEN\twt_x" in result.out
    assert "wt_x" not in result.err
    assert ask("workers", "create", "a", "--json").json == made


def test_rotating_resuming_and_deleting(ask: Run, fleet: FakeServer) -> None:
    fleet.on("POST", "/api/admin/workers/w_abc123/token", {"worker_id": "w_abc123", "token": "wt_new"})
    fleet.on("POST", "/api/admin/workers/w_abc123/resume", WORKER)
    fleet.on("DELETE", "/api/admin/workers/w_abc123", {})
    assert ask("workers", "rotate-token", "gpu-worker-1", "--fields", "token").out == "TOKEN\twt_new\n"
    assert ask("workers", "resume", "gpu-worker-1").code == 0
    assert ask("workers", "delete", "gpu-worker-1").code == 0


def test_labels_are_set_and_taken_away(ask: Run, fleet: FakeServer) -> None:
    fleet.on("PATCH", "/api/admin/workers/w_abc123", WORKER)
    assert ask("workers", "set-labels", "gpu-worker-1", "team=nlp", "location-").code == 0
    assert fleet.asked("PATCH", "/api/admin/workers/w_abc123")[0].body == {"labels": {"team": "nlp"}}
    assert ask("workers", "set-labels", "gpu-worker-1", "nonsense").code == ExitCode.USAGE


def test_a_submission_says_only_what_was_asked(ask: Run, fleet: FakeServer) -> None:
    assert ask("jobs", "submit", "my-training-config").code == 0
    assert fleet.seen[-1].body == {"config_name": "my-training-config"}
    assert fleet.seen[-1].headers["idempotency-key"].startswith("cli-")
    words = (
        "jobs submit my-config --target worker --label gpu_type=a100* --gpus 2 --min-vram 40 --priority high "
        "--set learning_rate=1e-4 --set note=x,y --max-retries 1 --retry-on-failure --time-limit 2h "
        "--depends-on j_1 --name flux --no-wait --idempotency-key mine"
    )
    assert ask(*words.split()).code == 0
    assert fleet.seen[-1].body == {
        "config_name": "my-config",
        "target": "worker",
        "worker_labels": {"gpu_type": "a100*"},
        "gpus": 2,
        "min_vram_gb": 40.0,
        "priority": "high",
        "overrides": {"learning_rate": 0.0001, "note": "x,y"},
        "max_retries": 1,
        "retry_on_failure": True,
        "time_limit_s": 7200.0,
        "depends_on": ["j_1"],
        "name": "flux",
        "no_wait": True,
    }
    assert fleet.seen[-1].headers["idempotency-key"] == "mine"


def test_zero_gpus_and_zero_retries_are_asked_for_and_not_forgotten(ask: Run, fleet: FakeServer) -> None:
    ask("jobs", "submit", "c", "--gpus", "0", "--max-retries", "0", "--priority", "0")
    assert fleet.seen[-1].body == {"config_name": "c", "gpus": 0, "max_retries": 0, "priority": 0}


def test_a_folder_is_sent_inline(ask: Run, fleet: FakeServer, tmp_path: Path) -> None:
    folder = tmp_path / "my flux"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_family": "flux", "data_backend_config": "x/multidatabackend.json"}'
    )
    (folder / "multidatabackend.json").write_text('[{"id": "a"}]')
    (folder / "lycoris_config.json").write_text("{}")
    (folder / ".hidden").write_text("no")
    assert ask("jobs", "submit", str(folder)).code == 0
    assert fleet.seen[-1].body == {
        "config_name": "my-flux",
        "config": {
            "settings": {"model_family": "flux", "data_backend_config": "config/multidatabackend.json"},
            "dataloader": [{"id": "a"}],
            "files": {"lycoris_config.json": "{}"},
        },
    }


def test_a_name_that_is_also_a_folder_gets_a_hint(
    ask: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flux").mkdir()
    server.on("POST", "/api/queue/submit", problem(404, "not_found", "There is no config 'flux'."))
    result = ask("jobs", "submit", "flux")
    assert result.code == ExitCode.NOT_FOUND
    assert "did you mean './flux'?" in result.err


def test_a_lost_reply_is_asked_for_again_with_the_same_key(server: FakeServer) -> None:
    pauses: list[float] = []

    def twice_silent(seen: Seen) -> Any:
        if len(server.asked("POST", "/api/queue/submit")) < 3:
            raise CutOff
        return SUBMITTED

    server.on("POST", "/api/queue/submit", twice_silent)
    where = ConnectionSettings(server.url, "", "st_x", "", Choices(), "", [])
    with Api(where, sleep=pauses.append) as api:
        assert api.post_once("/api/queue/submit", {"config_name": "c"}, "key-1") == SUBMITTED
    assert [seen.headers["idempotency-key"] for seen in server.seen] == ["key-1"] * 3
    assert pauses == [0.5, 1.0]


def test_the_next_address_is_asked_where_nobody_listens(server: FakeServer) -> None:
    server.on("GET", "/api/whoami", {"name": "me"})
    where = ConnectionSettings("http://127.0.0.1:9", "", "st_x", "", Choices(), "", [], (server.url,))
    with Api(where) as api:
        assert api.get("/api/whoami") == {"name": "me"}
        assert api.where.url == server.url


def test_the_next_address_is_asked_where_who_answers_does_not_lead(server: FakeServer) -> None:
    ours = "urn:simpletuner:problem:not_leader"
    answers = iter([problem(503, "not_leader", "Another one leads.", type=ours), {"name": "me"}])
    server.on("GET", "/api/whoami", lambda seen: next(answers))
    where = ConnectionSettings(server.url, "", "st_x", "", Choices(), "", [], (server.url,))
    with Api(where) as api:
        assert api.get("/api/whoami") == {"name": "me"}


def test_a_submission_waits_for_the_next_leader(server: FakeServer) -> None:
    answers = iter([problem(503, "not_leader", "Nobody leads."), SUBMITTED])
    server.on("POST", "/api/queue/submit", lambda seen: next(answers))
    where = ConnectionSettings(server.url, "", "st_x", "", Choices(), "", [])
    with Api(where, sleep=lambda _: None) as api:
        assert api.post_once("/api/queue/submit", {}, "key-1") == SUBMITTED


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            Answer(403, b"<html>log in to our Wi-Fi", {"Content-Type": "text/html"}),
            "HTTP status 403, and not in",
        ),
        (problem(503, "not_leader", "Nobody\x1b[2J leads."), "leads"),
    ],
)
def test_what_came_in_place_of_an_answer_is_said_as_the_request_is_sent_again(
    server: FakeServer, capsys: pytest.CaptureFixture[str], answer: Answer, said: str
) -> None:
    answers = iter([answer, SUBMITTED])
    server.on("POST", "/api/queue/submit", lambda seen: next(answers))
    where = ConnectionSettings(server.url, "", "st_x", "", Choices(), "", [])
    with Api(where, sleep=lambda _: None) as api:
        assert api.post_once("/api/queue/submit", {}, "key-1") == SUBMITTED
    notes = capsys.readouterr().err
    assert said in notes
    assert "sending the same request again" in notes
    assert "no answer" not in notes
    assert "\x1b" not in notes


def test_a_server_that_never_replies_ends_the_attempts(server: FakeServer) -> None:
    def silent(seen: Seen) -> Any:
        raise CutOff

    server.on("POST", "/api/queue/submit", silent)
    where = ConnectionSettings(server.url, "", "st_x", "", Choices(), "", [])
    with Api(where, sleep=lambda _: None) as api, pytest.raises(CliError) as ended:
        api.post_once("/api/queue/submit", {}, "key-1")
    assert ended.value.trouble.exit == ExitCode.UNREACHABLE
    assert len(server.seen) == 5


def test_an_impossible_job_is_accepted_with_a_warning(ask: Run, server: FakeServer) -> None:
    explain = {
        "class": "change",
        "code": "GPU_COUNT_TOO_LARGE",
        "sentence": "too few GPUs: the job needs 16, the largest worker has 8",
    }
    server.on("POST", "/api/queue/submit", {**SUBMITTED, "explain": explain})
    result = ask("jobs", "submit", "c", "--gpus", "16")
    assert result.code == 0
    assert "warning: too few GPUs: the job needs 16, the largest worker has 8" in result.err
    assert "adjust --num_processes in the training config" in result.err


def test_explain_says_through_whom_a_shared_gpu_is_used() -> None:
    verdicts = [
        {"name": "four", "fails": ["held_elsewhere"], "gpus_held_through": ["w_3"]},
        {"name": "three", "fails": ["busy"]},
    ]
    lines = explained({"code": "ALL_MATCHING_BUSY", "workers": verdicts})
    assert "  four: held_elsewhere (w_3)" in lines
    assert "  three: busy" in lines


def test_explain_tells_the_funnel_and_the_fixes(ask: Run, fleet: FakeServer) -> None:
    fleet.on(
        "GET",
        "/api/jobs/j_abcdef/explain",
        {
            "state": "queued",
            "as_of": "2026-11-15T00:00:00Z",
            "class": "change",
            "code": "LABELS_MATCH_NONE",
            "params": {},
            "sentence": "no worker has the required label gpu_type",
            "funnel": [{"step": "workers", "left": 5, "rule": "5 workers have joined"}],
            "workers": [
                {
                    "id": "w_1",
                    "name": "gpu-1",
                    "fails": ["labels_differ"],
                    "has_labels": ["SimpleTuner 3.1.6"],
                }
            ],
            "ahead": 2,
            "fixes": [],
        },
    )
    result = ask("jobs", "explain", "j_abcdef")
    assert "no worker has the required label gpu_type" in result.out
    assert "5 left  5 workers have joined" in result.out
    assert "gpu-1: labels_differ (SimpleTuner 3.1.6)" in result.out
    assert "check for label mismatch between job and workers" in result.err


def test_going_on_names_the_checkpoint_and_a_start_from_nothing_says_what_is_stored(
    ask: Run, fleet: FakeServer
) -> None:
    fleet.on("GET", "/api/jobs/j_abcdef", {**JOB, "status": "failed", "checkpoint_step": 75})
    fleet.on("POST", "/api/jobs/j_abcdef/retry", {**JOB, "id": "j_again"})
    reported = ask("jobs", "retry", "j_abcdef")
    assert "simpletuner jobs retry j_abcdef --resume-from j_abcdef" in reported.err
    assert fleet.asked("POST", "/api/jobs/j_abcdef/retry")[-1].body is None
    ask("jobs", "retry", "j_abcdef", "--resume-from", "j_abcdef:50")
    assert fleet.asked("POST", "/api/jobs/j_abcdef/retry")[-1].body == {"resume_from": "j_abcdef:50"}
    ask(
        "jobs",
        "submit",
        "c",
        "--resume-from",
        "j_abcdef",
        "--publish",
        "hf://me/x",
        "--publish-secret",
        "hub",
    )
    assert fleet.seen[-1].body == {
        "config_name": "c",
        "resume_from": "j_abcdef",
        "publish": {"to": "hf://me/x", "secret": "hub"},
    }


def test_publishing_is_asked_for_and_shown(ask: Run, fleet: FakeServer) -> None:
    row = {"job_id": "j_abcdef", "to": "hf://me/x", "state": "due", "tries": 0, "error": None, "url": None}
    fleet.on("POST", "/api/jobs/j_abcdef/publish", row)
    fleet.on("GET", "/api/jobs/j_abcdef/publication", {**row, "state": "published", "url": "https://hub/x"})
    assert ask("jobs", "publish", "j_abcdef", "--to", "hf://me/x", "--secret", "hub", "--public").code == 0
    assert fleet.asked("POST", "/api/jobs/j_abcdef/publish")[-1].body == {
        "to": "hf://me/x",
        "secret": "hub",
        "private": False,
        "branch": "main",
    }
    assert ask("jobs", "publish", "j_abcdef", "--show", "--json").json["url"] == "https://hub/x"
    fleet.on("GET", "/api/jobs/j_abcdef", {**JOB, "publication": {**row, "error": "the Hub said no"}})
    fleet.on("GET", "/api/jobs/j_abcdef/events", {"events": [], "notes": []})
    assert "publishing to hf://me/x: due the Hub said no" in ask("jobs", "get", "j_abcdef").err
    assert ask("jobs", "get", "j_abcdef", "--json").json["publication"]["state"] == "due"


def test_cancel_retry_and_priority(ask: Run, fleet: FakeServer) -> None:
    fleet.on("POST", "/api/jobs/j_abcdef/cancel", {**JOB, "status": "cancelling"})
    fleet.on("POST", "/api/jobs/j_abxyz/cancel", problem(409, "wrong_job_state", "The job is completed."))
    fleet.on("POST", "/api/jobs/j_abcdef/retry", {**JOB, "id": "j_again"})
    fleet.on("POST", "/api/queue/j_abcdef/priority", JOB)
    assert ask("jobs", "cancel", "j_abcdef").err == "j_abcdef is cancelling\n"
    assert ask("jobs", "cancel", "j_abcdef", "j_abxyz").code == ExitCode.CONFLICT
    assert ask("jobs", "retry", "j_abcdef", "-o", "name").out == "j_again\n"
    assert ask("jobs", "set-priority", "j_abcdef", "urgent").code == 0
    assert fleet.seen[-1].body == {"priority": "urgent"}
    ask("jobs", "set-priority", "j_abcdef", "5")
    assert fleet.seen[-1].body == {"priority": 5}


def test_logs_are_made_harmless_unless_raw(
    fleet: FakeServer, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLETUNER_URL", fleet.url)
    fleet.on("GET", "/api/jobs/j_abcdef/logs", Answer(200, b"\x1b[31mloss\x1b[0m 1\r\n\x07end\n"))
    assert main(["jobs", "logs", "j_abcdef", "--tail", "5", "--attempt", "2"]) == 0
    assert capfdbinary.readouterr().out == b"loss 1\n\\x07end\n"
    assert fleet.seen[-1].query == {"tail": ["5"], "attempt": ["2"]}
    assert main(["jobs", "logs", "j_abcdef", "--raw"]) == 0
    assert capfdbinary.readouterr().out == b"\x1b[31mloss\x1b[0m 1\r\n\x07end\n"


def test_status_shows_one_screen(ask: Run, server: FakeServer) -> None:
    busy = {**WORKER, "id": "w_2", "status": "busy", "gpu_count": 1}
    queued = {
        **JOB,
        "status": "queued",
        "explain": {"code": "X", "sentence": "all matching workers are busy"},
    }
    server.on("GET", "/health/ready", {"status": "ok"})
    server.on("GET", "/api/whoami", {"id": "t_admin", "name": "admin", "permissions": ["*"]})
    server.on("GET", "/api/admin/workers", {"workers": [WORKER, busy]})
    server.on(
        "GET",
        "/api/jobs",
        lambda seen: {"jobs": [JOB] if "running" in seen.query["status"] else [queued] * 3, "next": None},
    )
    out = ask("status").out
    assert f"Server   {server.url}  ready, as admin" in out
    assert "Workers  1 idle, 1 busy; 3 GPUs online" in out
    assert "Queue    3 waiting" in out
    assert "3  all matching workers are busy" in out
    assert "Running  1" in out
    idle = {"id": "m_1", "status": "joined", "hourly_micros": 1_500_000, "currency": "USD", "useless": "idle"}
    works = {**idle, "id": "m_2", "useless": ""}
    server.on("GET", "/api/machines", {"machines": [idle, works, {**idle, "id": "m_3"}]})
    seen = ask("status")
    assert "2 machines do nothing and cost 3.00 USD an hour" in seen.out + seen.err
    server.on("GET", "/api/admin/workers", problem(403, "forbidden", "…", permission="admin.workers"))
    assert "lacks admin.workers" in ask("status").out
    assert ask("status", "--json").json["waiting"] == {"all matching workers are busy": 3}


def test_curl_prints_the_call_without_making_it_and_without_the_token(ask: Run, fleet: FakeServer) -> None:
    result = ask("jobs", "submit", "my-config", "--label", "team=nlp's", "--idempotency-key", "k", "--curl")
    assert result.code == 0
    assert fleet.seen == []
    assert "st_secret" not in result.out
    assert result.out == (
        f'curl -s -X POST {fleet.url}/api/queue/submit -H "Authorization: Bearer $ADMIN_TOKEN" '
        "-H 'Idempotency-Key: k' -H 'Content-Type: application/json' -d "
        '\'{"config_name": "my-config", "worker_labels": {"team": "nlp\'"\'"\'s"}}\'\n'
    )
    assert ask("workers", "list", "--curl", "--status", "idle").out.split()[2] == (
        f"'{fleet.url}/api/admin/workers?status=idle&local=true'"
    )


def test_text_from_the_server_cannot_leave_its_cell(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/admin/workers", {"workers": [{**WORKER, "name": "a\tb\nc\x1b[31m"}]})
    lines = ask("workers", "list").out.splitlines()
    assert len(lines) == 2
    assert lines[1].split("\t")[1] == "a\\tb\\nc\\x1b[31m"


def test_a_path_cannot_be_smuggled_into_a_call(ask: Run, fleet: FakeServer) -> None:
    ask("configs", "get", "../admin/workers")
    assert fleet.seen[-1].path == "/api/configs/..%2Fadmin%2Fworkers"


def test_hints_are_for_people_only(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/jobs", {"jobs": [], "next": None})
    result = ask("jobs", "list")
    assert result.err == ""
    assert result.out.count("\n") == 1
