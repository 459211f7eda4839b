"""One vocabulary for how and why attempts end, also where nothing of ours can be imported."""

import ast
import inspect
from collections.abc import Iterator

from simpletuner_fleet.agent.guard import shim, shim_report
from simpletuner_fleet.core.jobs.job import GIVE_BACK_REASONS, EndReason, Outcome
from simpletuner_fleet.protocol.messages import FINAL_REPORTS, ReportStatus

TREE = ast.parse(
    inspect.getsource(shim) + inspect.getsource(shim_report).replace("from __future__ import annotations", "")
)


def strings(node: ast.AST | None) -> set[str]:
    """What an expression may be, where it is written out."""
    if isinstance(node, ast.IfExp):
        return strings(node.body) | strings(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def assigned_to(attribute: str) -> set[str]:
    return {
        word
        for node in ast.walk(TREE)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == attribute
        for word in strings(node.value)
    }


def first_arguments_of(method: str) -> set[str]:
    return {
        word
        for node in ast.walk(TREE)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
        for word in strings(node.args[0])
    }


def function(name: str) -> ast.FunctionDef:
    (definition,) = [n for n in ast.walk(TREE) if isinstance(n, ast.FunctionDef) and n.name == name]
    return definition


def matched_in(name: str) -> set[str]:
    return {
        word
        for node in ast.walk(function(name))
        if isinstance(node, ast.MatchValue)
        for word in strings(node.value)
    }


def outcomes_in(name: str) -> Iterator[str]:
    for node in ast.walk(function(name)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield from strings(node.value.elts[0])
        if isinstance(node, ast.Assign):
            yield from strings(node.value)


def test_the_shims_reasons_are_words_of_the_core() -> None:
    reasons = assigned_to("reason") | first_arguments_of("end") | matched_in("verdict")
    assert reasons == {"exited", "stopped", "time_limit", "fenced", "agent_lost", "start_failed"}
    assert reasons <= {reason.value for reason in EndReason}


def test_the_shims_outcomes_are_words_of_the_core() -> None:
    """Completed is none of them: what is stored it does not know."""
    outcomes = assigned_to("outcome") | set(outcomes_in("verdict"))
    assert outcomes == {"failed", "lost", "released"}
    assert outcomes <= {outcome.value for outcome in Outcome}


def test_every_final_report_is_an_outcome() -> None:
    assert {ReportStatus(status).value for status in FINAL_REPORTS} <= {outcome.value for outcome in Outcome}
    assert {outcome.value for outcome in Outcome} - {status.value for status in FINAL_REPORTS} == {
        Outcome.EXPIRED_OFFER.value
    }


def test_words_that_are_stored_or_travel_stay_as_they_are() -> None:
    assert [reason.value for reason in GIVE_BACK_REASONS] == [
        "drained",
        "time_limit",
        "preempted",
        "interrupted",
        "cut_off",
        "resume_failed",
    ]
    assert (EndReason.CANCELLED, EndReason.STALE) == ("cancelled", "stale")
