import pytest

from simpletuner_fleet.core.storage_claim import StorageClaim, StorageFacts, decide_claim


@pytest.mark.parametrize(
    ("database_id", "storage_id", "holds", "knows", "claim"),
    [
        (None, None, False, False, StorageClaim.MARK_IT),
        ("f_1", None, False, False, StorageClaim.MARK_IT),
        (None, None, True, True, StorageClaim.MARK_IT),
        ("f_1", None, True, True, StorageClaim.MARK_IT),
        ("f_1", "f_1", True, False, StorageClaim.OURS),
        ("f_1", "f_1", False, False, StorageClaim.OURS),
        (None, "f_1", True, True, StorageClaim.TAKE_ITS_ID),
        (None, None, True, False, StorageClaim.STRANGER),
        ("f_1", None, True, False, StorageClaim.STRANGER),
        (None, "f_1", True, False, StorageClaim.STRANGER),
        (None, "f_1", False, False, StorageClaim.STRANGER),
        ("f_2", "f_1", True, True, StorageClaim.STRANGER),
        ("f_2", "f_1", False, False, StorageClaim.STRANGER),
    ],
)
def test_a_storage_belongs_to_one_database(
    database_id: str | None, storage_id: str | None, holds: bool, knows: bool, claim: StorageClaim
) -> None:
    facts = StorageFacts(database_id=database_id, storage_id=storage_id, holds_files=holds, knows_files=knows)
    assert decide_claim(facts) is claim
