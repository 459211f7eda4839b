"""Whom a word means: whatever has this id, or else whatever has this name, also where the name looks like an id."""

from typing import Any
from urllib.parse import unquote

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.core.configs.datasets import PREFIX
from tests.cli.conftest import FakeServer, Run

ROWS = [{"id": "x_1", "name": "x_2"}, {"id": "x_2", "name": "x_3"}, {"id": "x_4", "name": "plain"}]
"""What is called x_2 is the second by its id; x_3 is nobody's id, and the name of the second."""
MEANT = [("x_1", "x_1"), ("x_2", "x_2"), ("x_3", "x_2"), ("plain", "x_4")]


def rows(prefix: str, **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": row["id"].replace("x_", prefix), "name": row["name"].replace("x_", prefix), **more}
        for row in ROWS
    ]


@pytest.fixture
def fleet(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/admin/workers", {"workers": rows("w_", status="idle", labels={})})
    server.on("GET", "/api/admin/tokens", {"tokens": rows("t_", revoked_at=None)})
    server.on("GET", "/api/notifications", {"endpoints": rows("n_")})
    server.on("GET", "/api/admin/users", {"users": rows("u_"), "next": None})
    return server


@pytest.mark.parametrize(("called", "meant"), MEANT)
@pytest.mark.parametrize(
    ("prefix", "words", "path"),
    [
        ("w_", ("workers", "delete"), "/api/admin/workers/{}"),
        ("w_", ("workers", "drain"), "/api/admin/workers/{}/drain"),
        ("w_", ("workers", "set-labels", "a=b"), "/api/admin/workers/{}"),
        ("w_", ("prices", "worker", "1"), "/api/admin/workers/{}"),
        ("t_", ("tokens", "revoke"), "/api/admin/tokens/{}"),
        ("n_", ("notifications", "delete"), "/api/notifications/{}"),
        ("n_", ("webhooks", "pause"), "/api/notifications/{}/pause"),
        ("u_", ("users", "disable"), "/api/admin/users/{}"),
    ],
)
def test_an_id_comes_first_and_then_a_name_that_looks_like_one(
    ask: Run, fleet: FakeServer, prefix: str, words: tuple[str, ...], path: str, called: str, meant: str
) -> None:
    noun, verb, *further = words
    ask(noun, verb, called.replace("x_", prefix), *further)
    changing = [seen.path for seen in fleet.seen if seen.method != "GET"]
    assert changing == [path.format(meant.replace("x_", prefix))]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("workers", "delete", "w_9"), "there is no worker 'w_9'"),
        (("tokens", "revoke", "t_9"), "no single token is named 't_9'"),
    ],
)
def test_what_nothing_is_called_is_not_found_and_nothing_is_changed(
    ask: Run, fleet: FakeServer, words: tuple[str, ...], said: str
) -> None:
    result = ask(*words)
    assert result.code == ExitCode.NOT_FOUND
    assert said in result.err
    assert all(seen.method == "GET" for seen in fleet.seen)


def test_a_revoked_token_is_found_by_its_id_and_never_by_its_name(ask: Run, server: FakeServer) -> None:
    revoked = {"id": "t_1", "name": "ci", "revoked_at": "2026-01-01T00:00:00Z"}
    server.on("GET", "/api/admin/tokens", {"tokens": [revoked, {"id": "t_2", "name": "ci"}]})
    ask("tokens", "revoke", "ci")
    ask("tokens", "revoke", "t_1")
    assert [seen.path for seen in server.seen if seen.method == "DELETE"] == [
        "/api/admin/tokens/t_2",
        "/api/admin/tokens/t_1",
    ]


@pytest.mark.parametrize("called", ["a" * 64, PREFIX + "a" * 64])
def test_a_dataset_that_is_named_like_an_id_is_found_by_its_name(
    ask: Run, server: FakeServer, called: str
) -> None:
    real = PREFIX + "b" * 64
    server.on("GET", "/api/data", {"datasets": [{"id": real, "name": called}]})
    ask("data", "delete", called)
    assert unquote(server.seen[-1].path) == f"/api/data/{real}"
    server.on(
        "GET",
        "/api/data",
        {"datasets": [{"id": PREFIX + "a" * 64, "name": "c"}, {"id": real, "name": called}]},
    )
    ask("data", "delete", "a" * 64)
    assert unquote(server.seen[-1].path) == f"/api/data/{PREFIX}{'a' * 64}"
