"""A command that says what it did prints what came of it, too, where somebody asks in which form."""

import pytest

from tests.cli.conftest import Answer, FakeServer, Run

CONFIG = {"name": "cats", "version": 2, "changed": True}
JOB = {"id": "j_1", "status": "running", "tags": ["paper"]}
CHECKPOINT = {"id": "m_1", "kind": "checkpoint", "step": 100}
WORKER = {"id": "w_1", "name": "gpu-1", "status": "draining", "labels": {"rack": "r1"}}
ENDPOINT = {"id": "n_1", "name": "siem", "channel": "webhook"}
DONE = [
    ("w_1", "workers drain w_1"),
    ("w_1", "workers set-labels gpu-1 rack=r1"),
    ("n_1", "webhooks add --address https://siem.example.org"),
    ("n_1", "notifications change n_1 --name siem"),
    ("j_1", "jobs tag j_1 paper"),
    ("j_1", "jobs note j_1 good"),
    ("m_1", "jobs pin j_1"),
    ("j_1", "jobs checkpoint j_1"),
    ("j_1", "jobs set-priority j_1 high"),
    ("m_1", "machines end m_1"),
]


@pytest.fixture
def fleet(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/jobs/j_1", JOB)
    server.on("POST", "/api/jobs/j_1/tags", JOB)
    server.on("PUT", "/api/jobs/j_1/note", JOB)
    server.on("POST", "/api/jobs/j_1/checkpoint", JOB)
    server.on("GET", "/api/jobs/j_1/artifacts", {"manifests": [CHECKPOINT]})
    server.on("PUT", "/api/jobs/j_1/artifacts/m_1/pin", CHECKPOINT)
    server.on("POST", "/api/queue/j_1/priority", JOB)
    server.on("GET", "/api/admin/workers", {"workers": [WORKER]})
    server.on("POST", "/api/admin/workers/w_1/drain", WORKER)
    server.on("PATCH", "/api/admin/workers/w_1", WORKER)
    server.on("POST", "/api/notifications", Answer(201, {"endpoint": ENDPOINT}))
    server.on("GET", "/api/notifications", {"endpoints": [ENDPOINT]})
    server.on("PATCH", "/api/notifications/n_1", ENDPOINT)
    server.on("POST", "/api/machines/m_1/end", {"id": "m_1", "status": "draining"})
    return server


@pytest.mark.parametrize(("name", "words"), DONE, ids=[words for _name, words in DONE])
def test_the_id_is_printed_where_ids_are_asked_for(
    ask: Run, fleet: FakeServer, name: str, words: str
) -> None:
    assert ask(*words.split(), "-o", "name").out == f"{name}\n"
    assert ask(*words.split(), "--fields", "id").out == f"ID\t{name}\n"
    assert ask(*words.split()).out == ""


def test_the_call_that_changes_a_rule_is_printed_and_not_the_one_before_it(
    ask: Run, server: FakeServer
) -> None:
    rule = {"id": "ar_1", "name": "big", "gpus_over": 2, "by": "leads", "count": 1, "people": []}
    server.on("GET", "/api/approvals/rules", {"rules": [rule]})
    printed = ask("approvals", "change-rule", "ar_1", "--count", "2", "--curl")
    assert f"-X PUT {server.url}/api/approvals/rules/ar_1 " in printed.out
    assert [seen.method for seen in server.seen] == ["GET"]


ONCE = [
    "tokens create ci --permission jobs.read",
    "workers create gpu-1",
    "workers rotate-token w_1",
]


@pytest.mark.parametrize("words", ONCE)
@pytest.mark.parametrize("asked", ["-o name", "-q -o name", "--fields name", "--json", "--fields name,token"])
def test_a_token_is_shown_once_however_little_is_asked_for(
    ask: Run, server: FakeServer, words: str, asked: str
) -> None:
    made = {"id": "t_1", "name": "ci", "token": "st_0123456789", "permissions": []}
    worker = {"worker_id": "w_1", "name": "gpu-1", "token": "st_0123456789", "connection_command": ""}
    server.on("POST", "/api/admin/tokens", Answer(201, made))
    server.on("POST", "/api/admin/workers", Answer(201, worker))
    server.on("POST", "/api/admin/workers/w_1/token", worker)
    server.on("GET", "/api/admin/workers", {"workers": [WORKER]})
    shown = ask(*words.split(), *asked.split())
    assert shown.code == 0
    assert (shown.out + shown.err).count("st_0123456789") == 1
    assert ("st_0123456789" in shown.out) is ("token" in asked or "json" in asked)
