"""Rows without rules of their own: what a filter lets through, and when a token's use is worth a write."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.ports import ApiToken, AuditFilter

ENTRY = AuditEntry(1, 100.0, "job.submitted", "u_1", "ada", "127.0.0.1", "job", "j_1", {})


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({}, True),
        ({"event_type": "job.submitted", "actor_id": "u_1", "target_type": "job", "target_id": "j_1"}, True),
        ({"event_type": "job.cancelled"}, False),
        ({"actor_id": "u_2"}, False),
        ({"target_type": "worker"}, False),
        ({"target_id": "j_2"}, False),
        ({"since": 100.0}, True),
        ({"since": 100.5}, False),
        ({"until": 100.0}, False),
        ({"until": 100.5}, True),
    ],
)
def test_a_filter_of_the_audit_log_holds_in_all_its_parts(asked: dict[str, Any], fits: bool) -> None:
    assert AuditFilter(**asked).fits(ENTRY) is fits


def test_the_use_of_a_token_is_noted_once_an_hour() -> None:
    token = ApiToken(id="t_1", name="ci", token_hash="h", permissions=(), created_at=0.0)
    assert token.wants_noting(0.0)
    used = replace(token, last_used_at=1_000.0)
    assert not used.wants_noting(4_599.0)
    assert used.wants_noting(4_600.0)
