"""A page with status 200 that stands in for the orchestrator, as of a captive portal, is no log, file, event or answer."""

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.client import AsyncFleet, Fleet, UnreachableError
from simpletuner_fleet.core.configs.datasets import PREFIX
from simpletuner_fleet.http.application import ROUTES
from tests.cli.conftest import Answer, FakeServer, Run, ask, run, server

__all__ = ["ask", "run", "server"]
PORTAL = "<html><title>Welcome to our Wi-Fi</title>\n<p>Log in first\n</html>\n"
PAGES = {
    "page": Answer(200, PORTAL.encode(), {"content-type": "text/html; charset=utf-8"}),
    "page without a kind": Answer(200, PORTAL.encode(), {"content-type": ""}),
    "text": Answer(200, b"Blocked by policy\n", {"content-type": "text/plain", "x-log-attempt": ""}),
    "nothing": Answer(200, b"", {"content-type": "text/html"}),
    "nothing at all": Answer(204, b"", {"content-type": ""}),
    "document": Answer(200, {}, {"content-type": "text/html"}),
    "packed": Answer(200, b"\x0b\x02\x80", {"content-type": "text/plain", "content-encoding": "br"}),
}
WEIGHTS = b"weights" * 1000
FILE = {"path": "model", "size": len(WEIGHTS), "sha256": hashlib.sha256(WEIGHTS).hexdigest()}
MANIFEST = {
    "id": "m_1",
    "kind": "artifact",
    "name": "out",
    "step": None,
    "attempt": 1,
    "worker_name": "gpu-1",
    "created_at": None,
    "total_bytes": len(WEIGHTS),
    "files": [FILE],
}
PLACES = ("", "/logs", "/artifacts", "/cancel", "/events", "/explain")
ACTS: dict[str, Callable[[Any], Any]] = {
    "logs": lambda fleet: all_of(fleet.logs("j_1")),
    "followed": lambda fleet: all_of(fleet.logs("j_1", follow=True)),
    "wait": lambda fleet: fleet.wait("j_1"),
    "jobs": lambda fleet: all_of(fleet.jobs()),
    "cancel": lambda fleet: fleet.cancel("j_1"),
    "submit": lambda fleet: fleet.submit("cats"),
}


def all_of(rows: Any) -> Any:
    return awaited(rows) if isinstance(rows, AsyncIterator) else list(rows)


async def awaited(rows: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in rows]


@pytest.fixture(params=PAGES)
def portal(server: FakeServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.setattr("simpletuner_fleet.client.calls.caller.RESEND_AFTER_S", (0.0,))
    monkeypatch.setattr("simpletuner_fleet.cli.remote.api.RESEND_AFTER_S", (0.0,))
    page = PAGES[request.param]
    if request.param == "text":
        page = Answer(200, page.body, {"content-type": "text/plain"})
        monkeypatch.setattr("tests.cli.conftest.usual_headers", lambda body, path: {})
    for place in PLACES:
        server.on("GET", "/api/jobs/j_1" + place, page)
    for path in ("/api/events", "/api/jobs", "/api/whoami", "/api/data", "/api/admin/workers"):
        server.on("GET", path, page)
    for path in ("/api/jobs/j_1/cancel", "/api/queue/submit", "/api/data/objects"):
        server.on("POST", path, page)
    return server


@pytest.mark.parametrize("act", ACTS)
def test_a_page_is_nothing_that_the_client_asked_for(portal: FakeServer, act: str) -> None:
    with Fleet(portal.url, "st_x") as fleet, pytest.raises(UnreachableError) as refused:
        ACTS[act](fleet)
    assert refused.value.code == "E_FOREIGN_ANSWER"


@pytest.mark.parametrize("act", ACTS)
async def test_nor_the_one_that_awaits(portal: FakeServer, act: str) -> None:
    async with AsyncFleet(portal.url, "st_x") as fleet:
        with pytest.raises(UnreachableError) as refused:
            await ACTS[act](fleet)
    assert refused.value.code == "E_FOREIGN_ANSWER"


@pytest.mark.parametrize(
    "words",
    [
        "jobs logs j_1",
        "jobs logs j_1 -f",
        "jobs wait j_1",
        "workers list --watch",
        "whoami",
        "jobs cancel j_1",
    ],
)
def test_nor_a_command(portal: FakeServer, ask: Run, words: str) -> None:
    said = ask(*words.split())
    assert said.code == ExitCode.UNREACHABLE, said
    assert said.out == ""
    assert "unexpectedly" not in said.err


@pytest.mark.parametrize(
    "words", ["jobs logs j_1", "jobs logs j_1 -f", "jobs logs j_1 --timestamps --tail 9999"]
)
def test_a_page_is_no_log_where_only_logs_are_replaced(portal: FakeServer, ask: Run, words: str) -> None:
    portal.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "running"})
    said = ask(*words.split())
    assert (said.code, said.out) == (ExitCode.UNREACHABLE, "")


def stored(server: FakeServer, page: Answer) -> None:
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "completed"})
    server.on("GET", "/api/jobs/j_1/artifacts", {"manifests": [MANIFEST]})
    server.on("GET", "/api/jobs/j_1/artifacts/m_1/files/model", page)


@pytest.mark.parametrize("page", [one for one in PAGES if one != "text"])
@pytest.mark.parametrize("had", [b"", WEIGHTS[:100]], ids=["begun anew", "gone on with"])
def test_a_page_is_no_download_and_spoils_none(
    server: FakeServer, ask: Run, tmp_path: Path, page: str, had: bytes
) -> None:
    stored(server, PAGES[page])
    part = tmp_path / "to" / "out" / "model.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(had)
    with Fleet(server.url, "st_x") as fleet, pytest.raises(UnreachableError) as refused:
        fleet.download("j_1", tmp_path / "to")
    assert refused.value.code == "E_FOREIGN_ANSWER"
    said = ask("jobs", "download", "j_1", "--to", str(tmp_path / "to"))
    assert said.code == ExitCode.UNREACHABLE
    assert "E_FOREIGN_ANSWER" in said.err
    assert part.read_bytes() == had
    server.on("GET", "/api/jobs/j_1/artifacts/m_1/files/model", Answer(200, WEIGHTS))
    assert ask("jobs", "download", "j_1", "--to", str(tmp_path / "to")).code == 0
    assert part.with_name("model").read_bytes() == WEIGHTS


def test_another_file_is_known_before_it_is_written(server: FakeServer, tmp_path: Path) -> None:
    other = Answer(200, WEIGHTS[::-1], {"etag": f'"{"0" * 64}"'})
    stored(server, other)
    with Fleet(server.url, "st_x") as fleet, pytest.raises(UnreachableError):
        fleet.download("j_1", tmp_path / "to")
    assert (tmp_path / "to" / "out" / "model.part").read_bytes() == b""


def test_a_page_is_no_list_of_files(portal: FakeServer, ask: Run, tmp_path: Path) -> None:
    dataset = PREFIX + "a" * 64
    portal.on("GET", "/api/data", {"datasets": [{"id": dataset, "name": "pets"}]})
    portal.on("GET", f"/api/data/{dataset.replace(':', '%3A')}", {"id": dataset, "name": "pets"})
    portal.on("GET", f"/api/data/{dataset}/objects/{'a' * 64}", portal.routes["GET", "/api/events"])
    said = ask("data", "pull", "pets", str(tmp_path / "to"))
    assert said.code == ExitCode.UNREACHABLE, said.err
    assert not (tmp_path / "to").exists()


def test_a_page_takes_no_upload(portal: FakeServer, ask: Run, tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "cat.txt").write_text("a cat")
    said = ask("data", "push", str(tmp_path / "pets"))
    assert (said.code, said.out) == (ExitCode.UNREACHABLE, "")


def may_be_none(result: Any) -> bool:
    return NoneType in (result, *get_args(result))


def test_no_route_that_a_client_uses_answers_with_nothing() -> None:
    """So whoever does is not the orchestrator."""
    silent = {
        (row.method, row.path)
        for row in ROUTES
        if row.status == 204 or may_be_none(get_type_hints(row.handler)["return"])
    }
    assert {path.split("/")[1] for _, path in silent} == {"scim"}
