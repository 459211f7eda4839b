"""How a table fits a terminal of any width: nothing is cut, and nothing leaves without a word."""

import argparse
import sys
from typing import Any

import pytest

from simpletuner_fleet.cli.frame.output import Column, Output, field
from tests.cli.conftest import FakeServer, Run

COLUMNS = (
    field("id"),
    field("name"),
    field("made", goes=1),
    field("labels", shrinks=True, goes=2),
    field("disabled"),
)
ITEMS: list[dict[str, Any]] = [
    {"id": "u_aaaaaaaaaa", "name": "ann", "made": "3d ago", "labels": {"site": "berlin"}, "disabled": None},
    {
        "id": "u_bbbbbbbbbb",
        "name": "bob",
        "made": "4d ago",
        "labels": {"site": "paris"},
        "disabled": "2d ago",
    },
]


def lines(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    items: list[dict[str, Any]],
    columns: tuple[Column, ...] = COLUMNS,
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = Output(argparse.Namespace(no_color=True))
    out.terminal = True
    out.table(items, columns)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", range(23, 90, 3))
def test_no_state_is_ever_cut_and_what_leaves_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    shown = lines(monkeypatch, capsys, width, ITEMS)
    text = "\n".join(shown)
    assert all(len(line.rstrip()) <= width for line in shown)
    for item in ITEMS:
        assert item["id"] in text
        assert item["name"] in text
    assert "DISABLED" in text
    assert "2d ago" in text
    for title, value in (("MADE", "3d ago"), ("LABELS", "berlin")):
        assert title in text, "a column that does not fit is named below the table"
        assert value in text or title in shown[-1] or title in shown[-2]


def test_what_does_not_fit_as_a_table_stands_below_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [line.split() for line in lines(monkeypatch, capsys, 24, ITEMS)]
    assert shown == [
        ["ID", "u_aaaaaaaaaa"],
        ["NAME", "ann"],
        ["MADE", "3d", "ago"],
        ["LABELS", "site=berlin"],
        ["DISABLED", "-"],
        [],
        ["ID", "u_bbbbbbbbbb"],
        ["NAME", "bob"],
        ["MADE", "4d", "ago"],
        ["LABELS", "site=paris"],
        ["DISABLED", "2d", "ago"],
    ]


def test_a_table_that_fits_has_nothing_below_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(lines(monkeypatch, capsys, 100, ITEMS)) == 3
    assert len(lines(monkeypatch, capsys, 10, [])) == 1


@pytest.mark.parametrize("width", [40, 50, 59, 80])
def test_who_is_disabled_and_which_token_has_expired_is_seen_at_any_width(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    times = {"created_at": "2026-01-01T00:00:00Z", "disabled_at": "2026-01-02T00:00:00Z"}
    user = {"id": "u_aaaaaaaaaa", "name": "a-long-enough-name", "role": "operator", **times}
    server.on("GET", "/api/admin/users", {"users": [user]})
    assert "DISABLED" in ask("users", "list").out
    token = {"id": "t_aaaaaaaaaa", "name": "ci", "permissions": ["*"], "expires_at": "2026-01-31T12:00:00Z"}
    server.on("GET", "/api/admin/tokens", {"tokens": [token]})
    shown = ask("tokens", "list").out
    assert "EXPIRES" in shown
    assert "2026-01-31T12:00:00Z" in shown
