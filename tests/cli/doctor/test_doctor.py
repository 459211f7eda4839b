"""The doctor looks, tells and changes nothing."""

import json
import os
import shutil
import sys
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.cli.doctor import checks_machine
from simpletuner_fleet.cli.doctor.checks_network import _clock, way_to
from simpletuner_fleet.cli.doctor.findings import FindingMark
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.client.trust import Choices
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.protocol.uploads import TRIED_PART_BYTES, TRIED_PART_PATH
from tests.cli.conftest import Answer, FakeServer, Run, problem
from tests.client.test_trust import make, tls_server

TOKEN = tokens.make(tokens.WORKER, bytes(32))
INVENTORY = json.dumps([{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 2}])


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver is asked in these tests."""
    monkeypatch.setenv("SIMPLETUNER_GPU_INVENTORY", INVENTORY)


def findings(result: Any) -> dict[str, str]:
    return {item["about"]: item["mark"] for item in result.json["items"]}


def test_a_worker_that_could_start(run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("GET", "/health/live", {"status": "ok"})
    server.on("GET", "/api/workers/queue", {"has_jobs": False})
    server.on("PUT", TRIED_PART_PATH, {"next_offset": TRIED_PART_BYTES})
    monkeypatch.setenv("SIMPLETUNER_ORCHESTRATOR_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_WORKER_TOKEN", TOKEN)
    result = run("doctor", "worker")
    assert result.code == ExitCode.OK, result.out
    assert "✓ GPU 1: NVIDIA A100-SXM4-80GB, 80 GB" in result.out
    assert "✓ token: accepted" in result.out
    assert f"✓ orchestrator_url: {server.url}   from environment SIMPLETUNER_ORCHESTRATOR_URL" in result.out
    assert "✓ worker_token: (secret)   from environment SIMPLETUNER_WORKER_TOKEN" in result.out
    assert TOKEN not in result.out + result.err
    assert {(seen.method, seen.path) for seen in server.seen if seen.method != "GET"} == {
        ("PUT", TRIED_PART_PATH)
    }


def test_a_rotated_token_is_found(run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("GET", "/health/live", {"status": "ok"})
    refused = problem(401, "invalid_token", "Invalid token.")
    refused.body["type"] = "urn:simpletuner:problem:invalid_token"
    server.on("GET", "/api/workers/queue", refused)
    monkeypatch.setenv("SIMPLETUNER_ORCHESTRATOR_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_WORKER_TOKEN", TOKEN)
    result = run("doctor", "worker", "--json")
    assert result.code == ExitCode.FAILED
    assert findings(result)["token"] == "✗"


def test_a_mistyped_token_is_found_without_sending_it(server: FakeServer) -> None:
    server.on("GET", "/health/live", {"status": "ok"})
    checks = list(way_to(server.url, Choices(), "X-Worker-Token", TOKEN[:-1], "/x"))
    assert checks[-1].mark is FindingMark.BAD
    assert "cut or mistyped" in checks[-1].what
    assert [seen.path for seen in server.seen] == ["/health/live"]


def test_a_wrong_clock_is_found(server: FakeServer) -> None:
    server.on("GET", "/health/live", Answer(200, {"status": "ok"}))
    checks = {
        finding.about: finding.mark for finding in way_to(server.url, Choices(), "Authorization", None, "/x")
    }
    assert checks["clock"] is FindingMark.GOOD
    assert next(_clock(formatdate(0, usegmt=True))).mark is FindingMark.DOUBT
    assert list(_clock("nonsense")) == []
    assert list(_clock("Mon, 01 Jan 99999999999999999999 00:00:00 GMT")) == []


def test_the_way_ends_where_it_is_blocked() -> None:
    checks = list(way_to("http://127.0.0.1:1", Choices(), "Authorization", None, "/x"))
    assert [finding.about for finding in checks] == ["name", "connection"]
    assert "--host 0.0.0.0" in checks[-1].fix


def test_a_certificate_is_shown_or_refused(tmp_path: Path) -> None:
    leaf = make("server")
    with tls_server(tmp_path, leaf) as server:
        pinned = list(way_to(server.url, Choices(fingerprint=leaf.pin), "Authorization", None, "/x"))
        assert any(leaf.pin in finding.what for finding in pinned)
        refused = list(way_to(server.url, Choices(), "Authorization", None, "/x"))
        assert refused[-1].mark is FindingMark.BAD
        assert "--ssl-fingerprint" in refused[-1].fix


def test_a_server_is_looked_at(run: Run, server: FakeServer, home: Path) -> None:
    server.on("GET", "/health/live", {"status": "ok"})
    (home / "data").chmod(0o755)
    (home / "data" / "fleet.db").write_bytes(b"this is no database, and never was one" * 100)
    result = run("doctor", "server", "--url", server.url)
    assert result.code == ExitCode.FAILED
    assert "! data folder" in result.out
    assert f"fix: chmod 700 {home}/data" in result.out
    assert "✗ database" in result.out
    assert f"data_dir: {home}/data   from environment SIMPLETUNER_HOME" in result.out


def test_wrong_settings_are_a_finding_and_not_the_end(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLETUNER_MAX_JOBS", "many")
    result = run("doctor", "--url", server.url)
    assert result.code == ExitCode.FAILED
    assert "environment SIMPLETUNER_MAX_JOBS has an invalid value" in result.out
    assert "This machine" in result.out


def test_a_broken_file_of_the_machine_keeps_nothing_from_being_looked_at(
    run: Run, server: FakeServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "etc.toml").write_text("[worker]\nfrob = 1\n[server]\nfrob = 1\n")
    monkeypatch.setattr("simpletuner_fleet.client.resolve_settings.SYSTEM_FILE", home / "etc.toml")
    server.on("GET", "/health/live", {"status": "live"})
    findings = run("doctor", "--url", server.url, "--json").json["items"]
    complaints = [one["section"] for one in findings if "etc.toml is not usable" in one["what"]]
    assert complaints == ["Worker settings", "Server settings"]
    assert {"work folder", "data folder", "port"} <= {one["about"] for one in findings}


def test_another_command_of_the_same_name_is_found(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "simpletuner"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    path = f"{other.parent}{os.pathsep}{Path(sys.executable).parent}"
    checks = list(checks_machine.command_clash({"PATH": path}))
    assert checks[0].mark is FindingMark.BAD
    assert str(other) in checks[0].what


def test_bad_inventory_and_hidden_gpus_are_found() -> None:
    checks = list(checks_machine.gpus({"SIMPLETUNER_GPU_INVENTORY": "nonsense"}))
    assert checks[0].mark is FindingMark.BAD
    checks = list(checks_machine.gpus({"SIMPLETUNER_GPU_INVENTORY": "[]", "CUDA_VISIBLE_DEVICES": "0"}))
    assert [finding.mark for finding in checks] == [FindingMark.DOUBT, FindingMark.DOUBT]


def test_a_full_disk_and_small_shared_memory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**8, 10**8, 10**7))
    assert checks_machine.disk("disk", tmp_path / "not" / "yet").mark is FindingMark.BAD
    assert next(checks_machine.shared_memory(tmp_path)).mark is FindingMark.DOUBT


HOTEL = Answer(200, b"<html>Welcome to our Wi-Fi</html>", {"Content-Type": "text/html"})
BAD_GATEWAY = Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})


@pytest.mark.parametrize(
    ("alive", "probe"),
    [(HOTEL, HOTEL), ({"status": "live"}, HOTEL), ({"status": "live"}, BAD_GATEWAY)],
    ids=["a portal", "a portal for strangers", "a proxy without a server"],
)
def test_what_answers_in_the_orchestrators_place_is_not_taken_for_it(
    server: FakeServer, alive: Any, probe: Answer
) -> None:
    server.on("GET", "/health/live", alive)
    server.on("GET", "/x", probe)
    checks = list(way_to(server.url, Choices(), "Authorization", "st_secret", "/x"))
    assert checks[-1].mark is FindingMark.BAD
    assert f"something else answers in place of the orchestrator at {server.url}" in checks[-1].what
    assert "token" not in {finding.about for finding in checks}


def test_a_portal_that_takes_an_upload_is_found(server: FakeServer) -> None:
    server.on("GET", "/health/live", {"status": "live"})
    server.on("GET", "/x", {"has_jobs": False})
    server.on("PUT", TRIED_PART_PATH, HOTEL)
    checks = list(way_to(server.url, Choices(), "X-Worker-Token", TOKEN, "/x"))
    assert checks[-1].mark is FindingMark.BAD
    assert "something other than the orchestrator answers an upload" in checks[-1].what


def test_a_server_that_takes_nothing_now_has_accepted_no_token(server: FakeServer) -> None:
    code = "store_unavailable"
    refused = problem(503, code, "The store is away.")
    refused.body["type"] = f"urn:simpletuner:problem:{code}"
    server.on("GET", "/health/live", {"status": "live"})
    server.on("GET", "/x", refused)
    checks = list(way_to(server.url, Choices(), "Authorization", "st_secret", "/x"))
    assert (checks[-1].mark, checks[-1].what) == (FindingMark.BAD, "The store is away.")


def test_each_note_on_settings_comes_with_its_own_fix(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLETUNER_TOKEN", "st_secret")
    monkeypatch.setenv("SIMPLETUNER_WORKER_TOKEN", f" {TOKEN}")
    notes = [
        one for one in run("doctor", "worker", "--json", "--url", server.url).json["items"] if one["fix"]
    ]
    fixes = {one["fix"]: one["what"] for one in notes if one["section"] == "Worker settings"}
    assert fixes.keys() == {"write it without whitespace", "correct it, or leave it out"}
    assert "SIMPLETUNER_TOKEN is not a setting" in fixes["correct it, or leave it out"]
