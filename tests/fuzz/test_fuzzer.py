"""`./dev fuzz` in small: some thousand inputs find nothing, the same seed sends the same, and what is wrong is seen."""

import asyncio
import json
import logging

import pytest

from devtools.fuzz.document import operations_of
from devtools.fuzz.judge import LogWatch, wrong_with, wrong_with_bytes
from devtools.fuzz.line import LineAnswer
from devtools.fuzz.requests import Sent
from devtools.fuzz.rounds import a_server
from devtools.fuzz.run import run_seed
from simpletuner_fleet.http.application import ROUTES

REQUEST = Sent("api", "GET /x", "GET", b"GET /x HTTP/1.1\r\n\r\n")
PROBLEM = {"type": "urn:simpletuner:problem:not_found", "status": 404, "code": "not_found", "detail": "no"}
AS_PROBLEM = {"content-type": "application/problem+json"}


@pytest.mark.parametrize(("seed", "inputs"), [(10, 1100), (11, 1000)])
def test_nothing_that_is_sent_breaks_anything(seed: int, inputs: int) -> None:
    """Seed 10 speaks to an agent with a trainer, too."""
    tally, defects = run_seed((seed, inputs))
    assert [str(one) for one in defects] == []
    assert sum(tally.inputs.values()) == inputs
    assert tally.statuses["200"] > inputs / 20, "most of what is sent is refused at the door"


def test_what_providers_send_by_scim_is_sent_almost_and_much_of_it_is_carried_out() -> None:
    carried_out = set[str]()
    for seed in (13, 14):  # each carries a rare operation out four times on average
        tally, defects = run_seed((seed, 400), only="scim")
        assert [str(one) for one in defects] == []
        assert tally.inputs["scim"] == 400
        carried_out |= tally.by_operation.keys()
    operations = {f"{row.method} {row.path}" for row in ROUTES if row.scim}
    assert operations <= carried_out, operations - carried_out


def test_the_same_seed_sends_the_same() -> None:
    first, second = run_seed((21, 150))[0], run_seed((21, 150))[0]
    assert first == second


def test_every_route_is_an_operation_of_the_document() -> None:
    async def described() -> set[str]:
        async with a_server(1) as server:
            document = json.loads((await server.ask("GET", "/openapi.json")).body)
        return {operation.name for operation in operations_of(document)}

    assert {f"{row.method} {row.path}" for row in ROUTES} <= asyncio.run(described())


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        (LineAnswer(404, AS_PROBLEM, json.dumps(PROBLEM).encode()), True),
        (LineAnswer(200, {}, b"whatever"), True),
        (LineAnswer(503, AS_PROBLEM, b""), False),
        (LineAnswer(500, AS_PROBLEM, b'{"code":"internal_error"}'), False),
        (LineAnswer(404, {"content-type": "text/html"}, b"<html>"), False),
        (LineAnswer(404, AS_PROBLEM, json.dumps({**PROBLEM, "status": 409}).encode()), False),
        (LineAnswer(404, AS_PROBLEM, json.dumps({**PROBLEM, "code": "unheard_of"}).encode()), False),
    ],
)
def test_an_answer_in_a_foreign_format_or_a_fault_of_ours_is_seen(answer: LineAnswer, good: bool) -> None:
    assert (wrong_with(REQUEST, answer) is None) is good


def test_what_is_answered_to_nonsense_is_looked_at_too() -> None:
    assert wrong_with_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\nHTTP/1.1 500 X\r\n\r\n")
    assert wrong_with_bytes(b"Traceback")
    assert wrong_with_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert wrong_with_bytes(b"HTTP/1.1 400 X\r\ncontent-type: application/problem+json\r\n\r\n{}") is None


def test_a_line_with_a_traceback_is_seen() -> None:
    watch = LogWatch()
    watch.attach()
    try:
        logging.getLogger("simpletuner_fleet.http").warning("an ordinary line")
        assert watch.take() == []
        try:
            raise ValueError("oops")
        except ValueError:
            logging.getLogger("simpletuner_fleet.http").warning("broken", exc_info=True)
    finally:
        watch.detach()
    assert "oops" in watch.take()[0]
