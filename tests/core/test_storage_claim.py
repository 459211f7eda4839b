import pytest

from simpletuner_fleet.core.storage_claim import Claim, StorageFacts, decide_claim


@pytest.mark.parametrize(
    ("database_id", "storage_id", "holds", "knows", "claim"),
    [
        (None, None, False, False, Claim.MARK_IT),
        ("f_1", None, False, False, Claim.MARK_IT),
        (None, None, True, True, Claim.MARK_IT),
        ("f_1", None, True, True, Claim.MARK_IT),
        ("f_1", "f_1", True, False, Claim.OURS),
        ("f_1", "f_1", False, False, Claim.OURS),
        (None, "f_1", True, True, Claim.TAKE_ITS_ID),
        (None, None, True, False, Claim.STRANGER),
        ("f_1", None, True, False, Claim.STRANGER),
        (None, "f_1", True, False, Claim.STRANGER),
        (None, "f_1", False, False, Claim.STRANGER),
        ("f_2", "f_1", True, True, Claim.STRANGER),
        ("f_2", "f_1", False, False, Claim.STRANGER),
    ],
)
def test_a_storage_belongs_to_one_database(
    database_id: str | None, storage_id: str | None, holds: bool, knows: bool, claim: Claim
) -> None:
    facts = StorageFacts(database_id=database_id, storage_id=storage_id, holds_files=holds, knows_files=knows)
    assert decide_claim(facts) is claim
