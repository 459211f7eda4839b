import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import ApprovalLinkOver
from simpletuner_fleet.core.people.approval_links import check_link, link_for
from simpletuner_fleet.core.people.approvals import (
    Approval,
    ApprovalState,
    Requirement,
    Vote,
    decided,
)
from tests.core.builders import NOW

ASKED = Approval(
    job_id="j_1", owner="u_ann", requirements=(Requirement(why="large"),), asked_at=NOW, expires_at=NOW + 600
)
LINK = link_for("u_lea", ASKED, 3600.0, NOW)


def test_a_link_ends_with_the_request_or_after_its_own_time_whichever_is_first() -> None:
    assert LINK is not None
    assert LINK.expires_at == NOW + 600
    short = link_for("u_lea", replace(ASKED, expires_at=None), 60.0, NOW)
    assert short is not None
    assert short.expires_at == NOW + 60
    assert link_for("u_lea", ASKED, 0.0, NOW) is None
    assert link_for("u_lea", ASKED, 3600.0, NOW + 600) is None


@pytest.mark.parametrize(
    ("approval", "now", "none_before"),
    [
        (ASKED, NOW + 600, 0.0),
        (ASKED, NOW + 1, NOW),
        (replace(ASKED, asked_at=NOW + 1), NOW + 2, 0.0),
        (decided(ASKED, ApprovalState.REJECTED, NOW + 1), NOW + 2, 0.0),
        (decided(ASKED, ApprovalState.EXPIRED, NOW + 1), NOW + 2, 0.0),
        (replace(ASKED, votes=(Vote(by="u_lea", name="lea", at=NOW),)), NOW + 2, 0.0),
    ],
)
def test_a_link_that_is_over_decides_nothing(approval: Approval, now: float, none_before: float) -> None:
    assert LINK is not None
    with pytest.raises(ApprovalLinkOver):
        check_link(LINK, approval, now, none_before)


def test_a_link_is_good_while_its_approver_has_said_nothing() -> None:
    assert LINK is not None
    check_link(LINK, replace(ASKED, votes=(Vote(by="u_max", name="max", at=NOW),)), NOW + 1, NOW - 1)
