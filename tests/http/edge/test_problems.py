"""One table from errors to statuses, and every error of the family has its place in it."""

import errno
import json

import pytest

from simpletuner_fleet.core import errors
from simpletuner_fleet.http.edge.problems import STATUS, problem_of, status_of
from simpletuner_fleet.ports import ConcurrentChange

FAMILY = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FleetError)
]
OUR_OWN_DEFECTS = {errors.FleetError, errors.IllegalTransition}


def test_every_error_of_the_family_has_a_status_of_its_own_or_its_parents() -> None:
    assert {kind for kind in FAMILY if status_of(kind) == 500} == OUR_OWN_DEFECTS


def test_the_most_specific_class_wins() -> None:
    assert (
        status_of(errors.OfferWithdrawn) == status_of(errors.StaleAttempt) == STATUS[errors.Conflict] == 409
    )
    assert status_of(KeyError) == 500


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in FAMILY]
    assert len(codes) == len(set(codes))


def test_details_of_the_error_become_members_but_never_replace_the_standard_ones() -> None:
    error = errors.WorkerNotOffline("The worker is busy.", worker_status="busy", status="busy", code="x")
    problem = json.loads(problem_of(error).body)
    assert problem == {
        "type": "urn:simpletuner:problem:worker_not_offline",
        "title": "Only an offline worker can be deleted.",
        "status": 409,
        "detail": "The worker is busy.",
        "code": "worker_not_offline",
        "next": errors.WorkerNotOffline.next_step,
        "worker_status": "busy",
    }


def test_a_lost_race_in_the_store_is_a_conflict_that_says_try_again() -> None:
    problem = problem_of(ConcurrentChange())
    assert (problem.status, json.loads(problem.body)["next"]) == (409, "Try again.")


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (errors.Unauthenticated(), (b"www-authenticate", b'Bearer realm="simpletuner"')),
        (errors.TooManyRequests(0.2), (b"retry-after", b"1")),
        (errors.TooManyRequests(7.1), (b"retry-after", b"8")),
        (errors.StoreUnavailable(), (b"retry-after", b"2")),
    ],
)
def test_statuses_bring_the_headers_they_need(error: errors.FleetError, header: tuple[bytes, bytes]) -> None:
    assert header in problem_of(error).headers


def test_a_full_disk_is_no_defect_of_ours() -> None:
    problem = problem_of(OSError(errno.ENOSPC, "No space left on device"))
    assert problem.status != 500
    assert b'"storage_low"' in problem.body
