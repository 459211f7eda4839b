import importlib
import json
import pkgutil

import pytest

import simpletuner_fleet
from simpletuner_fleet.core import errors
from simpletuner_fleet.http.edge import problems
from simpletuner_fleet.protocol.problems import KNOWN_CODES, read_problem


def family(kind: type[errors.FleetError]) -> set[type[errors.FleetError]]:
    return {kind}.union(*(family(member) for member in kind.__subclasses__()))


def test_every_refusal_of_the_server_has_a_code_that_workers_know() -> None:
    for module in pkgutil.walk_packages(simpletuner_fleet.__path__, "simpletuner_fleet."):
        if not module.name.endswith("__main__") and ".guard.shim" not in module.name:
            importlib.import_module(module.name)
    document = {
        kind.code
        for kind in family(errors.FleetError)
        if problems.status_of(kind) != 500 and kind.__module__.startswith("simpletuner_fleet.")
    }
    assert document - KNOWN_CODES == set()
    assert "internal_error" in KNOWN_CODES


@pytest.mark.parametrize(
    "error", [errors.StaleAttempt(), errors.NotFound("gone"), errors.InvalidToken("rotated")]
)
def test_what_the_server_says_is_read(error: errors.FleetError) -> None:
    answer = problems.problem_of(error)
    problem = read_problem(answer.status, answer.body)
    assert problem is not None
    assert (problem.code, problem.detail) == (error.code, error.detail)


OURS = json.loads(problems.problem_of(errors.NotFound("gone")).body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>404 Not Found</html>",
        b"[]",
        b'{"detail": "Not Found"}',
        b'{"code": "not_found", "detail": "another program\'s"}',
        json.dumps({**OURS, "type": "about:blank"}).encode(),
        json.dumps({**OURS, "status": 410}).encode(),
        json.dumps({**OURS, "code": "unheard_of", "type": "urn:simpletuner:problem:unheard_of"}).encode(),
        json.dumps({**OURS, "code": ["not_found"]}).encode(),
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_anybody_else_says_is_not(body: bytes) -> None:
    assert read_problem(404, json.dumps(OURS).encode()) is not None
    assert read_problem(404, body) is None
