"""What answers in the orchestrator's place is told as such: nothing counts as done, and nobody waits without a word."""

import hashlib
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.core.configs.datasets import PREFIX, canonical, id_of
from simpletuner_fleet.core.training.checkpoint import FileEntry
from tests.cli.conftest import Answer, CutOff, FakeServer, Run

WORKER = {"id": "w_1", "name": "gpu-1", "status": "idle", "labels": {}}
MOVED = {"location": "https://elsewhere.example.org/"}


@pytest.mark.parametrize(
    "answer",
    [Answer(301, b"", MOVED), Answer(307, b"", MOVED), Answer(302, b"{}", MOVED), Answer(200, b"")],
    ids=["301", "307", "302", "200"],
)
def test_an_answer_that_is_none_of_ours_has_deleted_nothing(
    ask: Run, server: FakeServer, answer: Answer
) -> None:
    server.on("GET", "/api/admin/workers", {"workers": [WORKER]})
    server.on("DELETE", "/api/admin/workers/w_1", answer)
    server.on("GET", "/api/whoami", answer)
    for words in (("workers", "delete", "w_1"), ("whoami",)):
        result = ask(*words)
        assert result.code == ExitCode.UNREACHABLE
        assert "is not a SimpleTuner orchestrator" in result.err
        assert "deleted" not in result.out + result.err


def test_a_redirection_says_where_to(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/whoami", Answer(301, b"", MOVED))
    assert "https://elsewhere.example.org/" in ask("whoami").err


@pytest.mark.parametrize("words", [("whoami",), ("jobs", "logs", "j_1"), ("workers", "list", "--watch")])
def test_an_answer_that_cannot_be_unpacked_is_not_our_own_defect(
    ask: Run, server: FakeServer, words: tuple[str, ...]
) -> None:
    garbage = Answer(200, b"not gzip at all", {"content-encoding": "gzip", "content-type": "text/plain"})
    for path in ("/api/whoami", "/api/jobs/j_1/logs", "/api/admin/workers", "/api/events"):
        server.on("GET", path, garbage)
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "running"})
    result = ask(*words)
    assert result.code == ExitCode.UNREACHABLE
    assert "unexpectedly" not in result.err


@pytest.mark.parametrize(
    "words", [("workers", "list", "--watch"), ("jobs", "list", "--watch"), ("jobs", "watch")]
)
def test_watching_a_server_that_is_not_there_ends_with_a_word(run: Run, words: tuple[str, ...]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    result = run(*words, "--url", f"http://127.0.0.1:{port}")
    assert result.code == ExitCode.UNREACHABLE
    assert "error: " in result.err


def test_a_list_is_watched_also_where_no_event_comes_through(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that keeps events back until they end."""
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.RECONNECT_S", 0.0)
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.QUIET_S", 0.1)
    job = {"id": "j_1", "config_name": "c", "attempt": 0, "gpus": []}
    looks: list[Any] = []

    def look(seen: Any) -> Any:
        looks.append(seen)
        return {**job, "status": "completed" if len(looks) > 3 else "running"}

    def hold_back(seen: Any) -> Any:
        raise CutOff

    server.on("GET", "/api/jobs/j_1", look)
    server.on("GET", "/api/events", hold_back)
    assert ask("jobs", "wait", "j_1").code == 0


@pytest.mark.parametrize("url", ["http://a..b:8001", "http://" + "a" * 70 + ".example:8001"])
@pytest.mark.parametrize("words", [("whoami",), ("workers", "list", "--watch"), ("doctor", "worker")])
def test_a_host_that_can_be_none_is_told_as_such(run: Run, url: str, words: tuple[str, ...]) -> None:
    result = run(*words, "--url", url)
    assert result.code in (ExitCode.UNREACHABLE, ExitCode.USAGE, ExitCode.FAILED)
    assert "unexpectedly" not in result.err


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_nested_without_end_is_not_our_own_defect(
    ask: Run, server: FakeServer, status: int
) -> None:
    server.on("GET", "/api/whoami", Answer(status, b"[" * 200_000))
    result = ask("whoami")
    assert result.code in (ExitCode.UNREACHABLE, ExitCode.USAGE)
    assert "unexpectedly" not in result.err


def test_a_server_that_names_another_dataset_gives_none(ask: Run, server: FakeServer, tmp_path: Path) -> None:
    manifest = canonical([FileEntry(path="a.txt", size=1, sha256=hashlib.sha256(b"a").hexdigest())])
    asked, other = PREFIX + "a" * 64, PREFIX + id_of(manifest)
    server.on("GET", "/api/data", {"datasets": []})
    server.on("GET", f"/api/data/{quote(asked, safe='')}", {"id": other, "name": "pets", "total_bytes": 1})
    for name in (asked, other):
        digest = name.removeprefix(PREFIX)
        server.on("GET", f"/api/data/{name}/objects/{digest}", Answer(200, manifest))
    for digest in (id_of(manifest), hashlib.sha256(b"a").hexdigest()):
        server.on("GET", f"/api/data/{quote(asked, safe='')}/objects/{digest}", Answer(200, b"a"))
    result = ask("data", "pull", asked, str(tmp_path / "pets"))
    assert result.code == ExitCode.FAILED
    assert not (tmp_path / "pets").exists()


@pytest.mark.parametrize("words", ["jobs compare j_1 j_2", "jobs list --fields id,\x1b]0;x\x07"])
def test_no_heading_of_a_table_can_control_a_terminal(ask: Run, server: FakeServer, words: str) -> None:
    for name in ("j_1", "j_2"):
        server.on("GET", f"/api/jobs/{name}", {"id": name, "status": "running"})
        server.on("GET", f"/api/jobs/{name}/metrics", {"series": {}})
    server.on("GET", "/api/compare", {"jobs": [], "differences": [], "differ": []})
    server.on("GET", "/api/jobs", {"jobs": [], "next": None})
    assert "\x1b" not in ask(*words.split(" ")).out


EVIL = "\x1b]0;owned\x07"


@pytest.mark.parametrize("words", ["audit verify", "status", "data push pets"])
def test_nothing_that_a_server_says_can_control_a_terminal(
    ask: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "cat.txt").write_text("a cat")
    monkeypatch.chdir(tmp_path)
    forged = {"valid": False, "checked": 1, "problems": [{"seq": EVIL, "what": "changed"}]}
    machine = {"id": "m_1", "useless": "idle", "hourly_micros": 1, "currency": EVIL}
    server.on("GET", "/api/audit/verify", forged)
    server.on("GET", "/health/ready", {"status": "ready"})
    server.on("GET", "/api/jobs", {"jobs": [], "next": None})
    server.on("GET", "/api/machines", {"machines": [machine]})
    server.on("POST", "/api/data/objects", {"missing": []})
    server.on("POST", "/api/data", {"id": EVIL, "name": "pets", "total_bytes": 5})
    said = ask(*words.split())
    assert "owned" in said.out
    assert EVIL not in said.out
