"""`simpletuner approvals change-rule`: what is not named stays, and what makes no sense is never sent."""

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from tests.cli.conftest import FakeServer, Run

RULES = "/api/approvals/rules"
RULE = {
    "id": "ar_1",
    "name": "large",
    "gpus_over": 4,
    "hours_over": None,
    "cost_over_micros": None,
    "gpu": "",
    "first_job": False,
    "config": "",
    "trainer": "",
    "team": "",
    "by": "people",
    "people": ["u_1"],
    "count": 1,
    "expires_s": 600.0,
    "exempts_approvers": True,
}


def test_a_rule_is_changed_and_keeps_what_is_not_named(ask: Run, server: FakeServer) -> None:
    server.on("GET", RULES, {"rules": [RULE]})
    server.on("PUT", f"{RULES}/ar_1", RULE)
    words = ["--hours-over", "12", "--by", "leads", "--without", "gpus_over"]
    assert ask("approvals", "change-rule", "ar_1", *words).code == 0
    (asked,) = server.asked("PUT", f"{RULES}/ar_1")
    left_out = {"id", "gpus_over"}
    kept = {name: value for name, value in RULE.items() if name not in left_out}
    assert asked.body == {**kept, "hours_over": 12.0, "by": "leads", "people": []}
    assert ask("approvals", "change-rule", "ar_2", "--count", "2").code == ExitCode.NOT_FOUND


def test_senseless_hours_are_refused_before_anybody_is_asked(ask: Run, server: FakeServer) -> None:
    for hours in ("-1", "nan", "inf", "many"):
        assert ask("approvals", "add-rule", "x", f"--hours-over={hours}").code == 2, hours
    assert server.asked("POST", RULES) == []


def test_a_rule_without_a_condition_is_said_to_hold_for_every_job(ask: Run, server: FakeServer) -> None:
    server.on("POST", RULES, {**RULE, "gpus_over": None})
    made = ask("approvals", "add-rule", "large")
    assert "every job that is submitted from now on needs an approval" in made.err
    assert "but for jobs of those who may approve every job" in made.err
    assert "every job" in made.out
    server.on("POST", RULES, {**RULE, "gpus_over": None, "exempts_approvers": False})
    made = ask("approvals", "add-rule", "large")
    assert made.err.rstrip().endswith("every job that is submitted from now on needs an approval")
    server.on("POST", RULES, {**RULE, "gpus_over": 0})
    made = ask("approvals", "add-rule", "large", "--gpus-over", "0")
    assert "gpus_over=0" in made.out
    assert "every job" not in made.out + made.err


def test_the_help_says_for_which_jobs_a_rule_without_a_condition_holds(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("approvals", "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "a job needs an approval where all that is named is so; where nothing is, every job" in said
