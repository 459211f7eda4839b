"""The doctor calls nothing good that it has not seen to be so, and one check that breaks is not the end of the others."""

import json
import sys
from pathlib import Path

import pytest

from simpletuner_fleet.cli.doctor import checks_server
from simpletuner_fleet.cli.doctor.checks_network import WHOAMI, WORKER_PROBE, way_to
from simpletuner_fleet.cli.doctor.findings import FindingMark
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.client.trust import Choices
from tests.cli.conftest import Answer, FakeServer, Run, problem
from tests.cli.doctor.test_doctor import INVENTORY, TOKEN


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver is asked in these tests."""
    monkeypatch.setenv("SIMPLETUNER_GPU_INVENTORY", INVENTORY)


@pytest.mark.parametrize(
    ("status", "code"), [(500, "internal_error"), (404, "not_found"), (409, "conflict"), (422, "invalid")]
)
@pytest.mark.parametrize(("header", "probe"), [("Authorization", WHOAMI), ("X-Worker-Token", WORKER_PROBE)])
def test_only_an_answer_that_lets_in_is_a_token_that_was_accepted(
    server: FakeServer, header: str, probe: str, status: int, code: str
) -> None:
    server.on("GET", "/health/live", {"status": "ok"})
    refused = problem(status, code, "The detail.")
    refused.body["type"] = f"urn:simpletuner:problem:{code}"
    server.on("GET", probe.partition("?")[0], refused)
    checks = [*way_to(server.url, Choices(), header, TOKEN, probe)]
    assert "accepted" not in " ".join(finding.what for finding in checks)
    assert checks[-1].mark is FindingMark.BAD
    assert "The detail." in checks[-1].what


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_token_file_that_cannot_be_read_is_told_as_such(
    run: Run, server: FakeServer, home: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    file = home / "token"
    if content:
        file.write_bytes(content)
    server.on("GET", "/health/live", {"status": "ok"})
    monkeypatch.setenv("SIMPLETUNER_ORCHESTRATOR_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_WORKER_TOKEN_FILE", str(file))
    result = run("doctor", "worker")
    assert result.code == ExitCode.FAILED
    assert f"cannot read {file}" in result.out
    assert "none was given" not in result.out


def test_what_is_doubtful_is_not_called_free_of_problems(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("GET", "/health/live", {"status": "ok"})
    monkeypatch.setenv("SIMPLETUNER_ORCHESTRATOR_URL", server.url)
    result = run("doctor", "worker")
    assert result.code == ExitCode.OK
    assert "! token: none was given" in result.out
    assert "No problems found" not in result.err
    assert "see ! above" in result.err


def test_a_data_folder_that_is_a_file_is_no_data_folder(run: Run, home: Path) -> None:
    file = home / "file"
    file.write_text("")
    file.chmod(0o600)
    checks = [*checks_server.data_folder(file)]
    assert [finding.mark for finding in checks] == [FindingMark.BAD]
    assert "not a folder" in checks[0].what


def test_a_check_that_breaks_is_a_finding_and_not_the_end(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/secret/place")

    server.on("GET", "/health/live", {"status": "ok"})
    server.on("GET", "/api/whoami", {"id": "u_1", "name": "ann"})
    monkeypatch.setenv("SIMPLETUNER_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", "st_secret")
    monkeypatch.setattr("shutil.disk_usage", refuse)
    result = run("doctor", "server")
    assert result.code == ExitCode.FAILED
    assert "/secret/place" in result.out
    assert "✓ token: accepted" in result.out


def test_a_database_without_its_driver_is_a_finding_and_not_the_end(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("SIMPLETUNER_DATABASE_URL", "postgresql://nowhere/fleet")
    monkeypatch.setenv("SIMPLETUNER_URL", server.url)
    server.on("GET", "/health/live", {"status": "ok"})
    result = run("doctor", "server", "--json")
    assert result.code == ExitCode.FAILED
    by_name = {item["about"]: item for item in json.loads(result.out)["items"]}
    assert "psycopg" in by_name["database"]["what"]
    assert "simpletuner-fleet[server,postgres]" in by_name["database"]["fix"]
    assert "server" in by_name


@pytest.mark.parametrize("body", [b"", b"not gzip"])
def test_an_answer_that_cannot_be_unpacked_is_a_finding(server: FakeServer, body: bytes) -> None:
    server.on("GET", "/health/live", Answer(200, body, {"content-encoding": "gzip"}))
    checks = [*way_to(server.url, Choices(), "Authorization", TOKEN, WHOAMI)]
    assert checks[-1].mark is FindingMark.BAD


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("header", "probe"), [("Authorization", WHOAMI), ("X-Worker-Token", WORKER_PROBE)])
def test_a_proxy_that_wants_a_password_says_nothing_about_the_token(
    server: FakeServer, header: str, probe: str, status: int
) -> None:
    server.on("GET", "/health/live", {"status": "ok"})
    server.on("GET", probe.partition("?")[0], Answer(status, b"<html>Authorization required"))
    last = [*way_to(server.url, Choices(), header, TOKEN, probe)][-1]
    assert (last.mark, last.about) == (FindingMark.BAD, "server")
    assert "something else answers" in last.what
