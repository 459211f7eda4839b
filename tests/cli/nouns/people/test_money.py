"""`simpletuner prices`, `simpletuner usage`, and quotas of money."""

from typing import Any

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from tests.cli.conftest import Answer, FakeServer, Run

RULE = {"id": "p_1", "price_micros": 85_000, "label": "", "value": "", "gpu": "*H100*", "worker_type": None}
LINE = {
    "key": "u_1",
    "name": "ann",
    "attempts": 3,
    "gpu_hours": 2.0,
    "cost_micros": 5_000_000,
    "at_least": False,
    "unpriced_gpu_hours": 0.0,
}
UNKNOWN = {**LINE, "key": "u_2", "name": "*", "cost_micros": 0, "at_least": True, "unpriced_gpu_hours": 2.0}
PARTLY = {**LINE, "key": "u_3", "name": "bob", "at_least": True, "unpriced_gpu_hours": 0.5}
QUOTA: dict[str, Any] = {
    "id": "q_1",
    "kind": "money_month",
    "scope": "all",
    "subject": "",
    "whose": "all",
    "ceiling": 500_000_000,
    "action": "wait",
    "warn_at": 0.8,
    "unit": "EUR",
}


@pytest.fixture
def money(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/prices", {"currency": "EUR", "rules": [RULE]})
    server.on("POST", "/api/prices", Answer(201, RULE))
    server.on("DELETE", "/api/prices/p_1", {"success": True, "id": "p_1"})
    report = {
        "by": "person",
        "since": "2026-11-01T00:00:00Z",
        "until": "2026-11-16T12:00:00Z",
        "currency": "EUR",
    }
    lines = [LINE, UNKNOWN, PARTLY]
    server.on("GET", "/api/usage", {**report, "total": PARTLY, "lines": lines})
    server.on("GET", "/api/quotas", {"quotas": [QUOTA]})
    server.on("POST", "/api/quotas", Answer(201, QUOTA))
    server.on("PATCH", "/api/quotas/q_1", QUOTA)
    return server


def test_prices_are_set_exactly_as_they_were_written(ask: Run, money: FakeServer) -> None:
    assert ask("prices", "add", "0.085", "--gpu", "*H100*", "--label", "market=sp*").code == 0
    body = {"price_micros": 85_000, "gpu": "*H100*", "label": "market", "value": "sp*"}
    assert money.asked("POST", "/api/prices")[0].body == body
    assert "0.085 EUR" in ask("prices", "list").out
    assert ask("prices", "delete", "p_1").code == 0
    for wrong in (("1,5",), ("2.50", "--label", "market")):
        assert ask("prices", "add", *wrong).code == ExitCode.USAGE


def test_a_report_says_what_is_not_known(ask: Run, money: FakeServer) -> None:
    shown = ask("usage", "--by", "person", "--since", "30d")
    assert money.asked("GET", "/api/usage")[0].query == {"by": ["person"], "since": ["30d"]}
    assert "5.00 EUR" in shown.out
    assert "cost not known" in shown.out
    assert "at least 5.00 EUR" in shown.out
    assert "private" in shown.out
    assert ask("usage", "-o", "json").json["total"]["name"] == "bob"


@pytest.mark.parametrize(
    ("unpriced", "said", "not_said"),
    [(0, "3.00 EUR", "at least"), (1, "at least 3.00 EUR", "not"), (4, "IDLE", "EUR")],
)
def test_what_has_no_price_is_not_free(
    ask: Run, money: FakeServer, unpriced: int, said: str, not_said: str
) -> None:
    costs = {"idle_hourly_micros": 3_000_000, "busy_hourly_micros": 0}
    now = {"gpus": 4, "idle_gpus": 2, "unpriced_gpus": unpriced, **costs}
    money.on("GET", "/api/prices/idle", {"currency": "EUR", "now": now})
    result = ask("prices", "idle")
    assert said in result.out
    assert not_said not in result.out


def test_a_budget_is_written_in_its_currency_and_sent_in_millionths(ask: Run, money: FakeServer) -> None:
    assert "500.00 EUR" in ask("quotas", "create", "money_month", "500.00", "--team", "vision").out
    sent = money.asked("POST", "/api/quotas")[0].body
    assert (sent["kind"], sent["ceiling"], sent["subject"]) == ("money_month", 500_000_000, "vision")
    assert ask("quotas", "set", "q_1", "600").code == 0
    assert money.asked("PATCH", "/api/quotas/q_1")[0].body == {"ceiling": 600_000_000}
    assert ask("quotas", "create", "gpus", "2.5").code == 0
    assert money.asked("POST", "/api/quotas")[1].body["ceiling"] == 2.5
    assert ask("quotas", "create", "money_day", "much").code == ExitCode.USAGE


@pytest.mark.parametrize("kind", ["gone", "portal"])
def test_a_table_of_use_comes_from_an_orchestrator_or_not_at_all(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "gone":
        monkeypatch.setenv("SIMPLETUNER_URL", "http://127.0.0.1:1")
    server.on("GET", "/api/usage/export", Answer(200, b"<html>", {"Content-Type": "text/html"}))
    refused = ask("usage", "--csv")
    assert refused.code == ExitCode.UNREACHABLE
    assert refused.out == ""


CANNOT_BE_SENT = (
    *("quotas create gpus nan", "quotas create gpus 4 --warn-at inf", "teams create vision --weight nan"),
    *(
        "jobs submit cats --min-vram nan",
        "webhooks rotate n_1 --overlap inf",
        "jobs purge --older-than 9999999w",
    ),
)


@pytest.mark.parametrize("words", CANNOT_BE_SENT)
def test_a_number_that_cannot_be_sent_is_refused_as_it_was_typed(
    ask: Run, server: FakeServer, words: str
) -> None:
    assert ask(*words.split()).code == ExitCode.USAGE
    assert server.seen == []


def test_a_table_of_use_cannot_control_a_terminal(ask: Run, server: FakeServer) -> None:
    rows = "key,name\r\nu_1,\x1b]0;x\x07ann\u202e\r\n".encode()
    server.on("GET", "/api/usage/export", Answer(200, rows, {"Content-Type": "text/csv; charset=utf-8"}))
    assert ask("usage", "--csv").out == "key,name\nu_1,\\x1b]0;x\\x07ann\\u202e\n"
