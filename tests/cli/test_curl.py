"""`--curl`: every command that takes it prints one call, and does nothing of what it would do."""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.client.connection import credentials_file
from tests.cli.conftest import FakeServer, Run

JOB = {"id": "x1", "status": "completed", "attempt": 1, "config_name": "c", "created_at": None}
FILE = {"path": "model.bin", "size": 1, "sha256": "b" * 64}
LOOKED_UP = {
    "/api/jobs/x1": JOB,
    "/api/admin/workers": {"workers": [{"id": "w_1", "name": "x1", "status": "idle", "labels": {}}]},
    "/api/pools": {"pools": [{"name": "x1", "request": {"provider": "process"}}]},
    "/api/data": {"datasets": [{"id": "d_" + "a" * 64, "name": "x1", "created_at": "2026-01-01T00:00:00Z"}]},
    "/api/data/d_" + "a" * 64: {"id": "d_" + "a" * 64, "name": "x1"},
    "/api/notifications": {"endpoints": [{"id": "n_1", "name": "x1"}]},
    "/api/admin/tokens": {"tokens": [{"id": "t_1", "name": "x1"}]},
    "/api/admin/users": {"users": [{"id": "u_1", "name": "x1"}], "next": None},
    "/api/quotas": {"quotas": [{"id": "x1", "kind": "jobs_running"}]},
    "/api/approvals/rules": {"rules": [{"id": "ar_1", "name": "x1"}, {"id": "x1", "name": "n"}]},
    "/api/jobs/x1/artifacts": {
        "manifests": [
            {"id": f"m_{kind}", "kind": kind, "name": kind, "step": 1, "files": [FILE]}
            for kind in ("checkpoint", "artifact")
        ]
    },
}
"""What a command may ask for before it knows the call that it would make."""
GIVEN = {
    "ceiling": ["5"],
    "config_ref": ["my-config"],
    "currency": ["EUR"],
    "folder": ["folder"],
    "jobs": ["x1", "x2"],
    "labels": ["a=b"],
    "path": ["config.json"],
    "price": ["1"],
    "priority": ["5"],
    "role": ["viewer"],
    "tags": ["a"],
}
FURTHER = {
    "notifications add": ["--channel", "ntfy"],
    "notifications change": ["--event", "job.failed"],
    "notifications replay": ["--since", "2026-01-31T12:00:00Z"],
    "webhooks replay": ["--since", "2026-01-31T12:00:00Z"],
    "jobs purge": ["--older-than", "1d"],
    "jobs tag": ["good"],
    "jobs act": ["--status", "running"],
    "jobs pin": ["1"],
    "jobs edit": ["--gpus", "2"],
    "tokens create": ["--permission", "jobs.read"],
    "sign-in add": ["--issuer", "https://id.example.org", "--client-id", "c", "--public"],
    "approvals change-rule": ["--count", "2"],
}
WITHOUT_A_CALL = (
    *(("backup", verb, "b.zip") for verb in ("create", "verify", "restore")),
    ("configs", "examples"),
    ("completion", "bash"),
    ("demo",),
    ("doctor",),
    ("logout",),
    ("version",),
)


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that takes `--curl`, as it is called."""

    def walk(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
        groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not groups and "--curl" in parser._option_string_actions:
            yield name, parser
        for group in groups:
            for word, child in group.choices.items():
                yield from walk(child, f"{name} {word}".strip())

    yield from walk(build_parser(), "")


def words_of(name: str, parser: argparse.ArgumentParser) -> list[str]:
    words = name.split()
    for action in parser._actions:
        if not action.option_strings and (action.nargs not in ("?", "*") or action.dest in ("path", "jobs")):
            given = GIVEN.get(action.dest) or [next(iter(action.choices or ["x1"]))]
            words += given[: None if action.nargs in ("+", "*") else 1]
    return [*words, *FURTHER.get(name, [])]


COMMANDS = [pytest.param(words_of(name, parser), id=name) for name, parser in commands()]


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "stdin", io.StringIO("stfa_canary\n"))
    (home / "folder").mkdir()
    (home / "folder" / "a.png").write_bytes(b"x")
    (home / "config.json").write_text('{"model_family": "flux"}')
    return home


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_prints_its_call_and_does_nothing(
    ask: Run, server: FakeServer, here: Path, words: list[str]
) -> None:
    for path, document in LOOKED_UP.items():
        server.on("GET", path, document)
    before = sorted(here.rglob("*"))
    result = ask(*words, "--curl")
    assert (result.code, result.err) == (0, "") or words[:2] == ["secrets", "set"]
    assert result.out.startswith("curl -s ")
    assert result.out.count("\n") == 1
    assert "canary" not in result.out
    assert sorted(here.rglob("*")) == before
    assert {(seen.method, seen.path) for seen in server.seen} <= {("GET", path) for path in LOOKED_UP}


@pytest.mark.parametrize("words", WITHOUT_A_CALL, ids=" ".join)
def test_a_command_that_calls_nobody_takes_no_curl(run: Run, here: Path, words: tuple[str, ...]) -> None:
    before = sorted(here.rglob("*"))
    result = run(*words, "--curl")
    assert result.code == ExitCode.USAGE
    assert "has no option '--curl'" in result.err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("ways", "call"),
    [
        ((), "{url}/api/whoami"),
        (("--web",), "-X POST {url}/api/login/terminals"),
        (("--device",), "-X POST {url}"),
    ],
)
def test_a_log_in_is_printed_and_not_made(
    run: Run, server: FakeServer, here: Path, ways: tuple[str, ...], call: str
) -> None:
    server.on("GET", "/api/whoami", {"id": "u_1", "name": "ann", "permissions": []})
    result = run("login", server.url, *ways, "--curl")
    assert (result.code, server.seen) == (0, [])
    assert call.format(url=server.url) in result.out
    assert not credentials_file().exists()


def test_a_config_is_not_checked_by_a_trainer_here_where_the_call_is_asked_for(
    ask: Run, server: FakeServer, here: Path
) -> None:
    result = ask("configs", "validate", "config.json", "--trainer-python", "/nowhere/python", "--curl")
    assert (result.code, server.seen) == (0, [])
    assert f"{server.url}/api/config-check" in result.out
