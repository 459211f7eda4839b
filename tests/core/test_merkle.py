"""The tree over the log: a proof shows that nothing of the earlier log is gone, and nothing else does."""

import hashlib

import pytest

from simpletuner_fleet.core.merkle import EMPTY, consistency_proof, is_consistent, leaf, node, root_of, split

LEAVES = [leaf(hashlib.sha256(b"%d" % number).hexdigest()) for number in range(70)]


def proof(earlier: int, later: int) -> list[bytes]:
    return consistency_proof(earlier, later, lambda start, end: root_of(LEAVES[start:end]))


def test_the_root_of_small_trees() -> None:
    one, two, three = LEAVES[:3]
    assert root_of([]) == EMPTY
    assert root_of([one]) == one
    assert root_of([one, two, three]) == node(node(one, two), three)
    assert [split(size) for size in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 4, 4, 8]


def by_the_definition(leaves: list[bytes]) -> bytes:
    """As RFC 9162 says it: the largest power of two that is smaller than the size goes to the left."""
    if len(leaves) == 1:
        return leaves[0]
    middle = split(len(leaves))
    return node(by_the_definition(leaves[:middle]), by_the_definition(leaves[middle:]))


def test_the_root_is_that_of_the_definition_for_every_size() -> None:
    for size in range(1, len(LEAVES) + 1):
        assert root_of(LEAVES[:size]) == by_the_definition(LEAVES[:size]), size


def test_every_earlier_log_is_proven_to_be_part_of_every_later_one() -> None:
    roots = [root_of(LEAVES[:size]) for size in range(len(LEAVES) + 1)]
    for later in range(1, len(LEAVES) + 1):
        for earlier in range(1, later + 1):
            steps = proof(earlier, later)
            assert is_consistent(earlier, later, roots[earlier], roots[later], steps), (earlier, later)
            assert len(steps) <= 2 * later.bit_length()


def test_no_other_proof_and_no_other_root_is_taken() -> None:
    for later in range(2, 40):
        for earlier in range(1, later):
            old, new, steps = root_of(LEAVES[:earlier]), root_of(LEAVES[:later]), proof(earlier, later)
            other = hashlib.sha256(b"other").digest()
            assert not is_consistent(earlier, later, other, new, steps)
            assert not is_consistent(earlier, later, old, other, steps)
            assert not is_consistent(earlier, later, old, new, [*steps, other])
            assert not is_consistent(earlier, later, old, new, steps[:-1])
            for at in range(len(steps)):
                assert not is_consistent(earlier, later, old, new, [*steps[:at], other, *steps[at + 1 :]])
    assert not is_consistent(5, 3, LEAVES[0], LEAVES[0], [])
    assert not is_consistent(0, 3, EMPTY, root_of(LEAVES[:3]), [])


@pytest.mark.parametrize(("earlier", "later"), [(0, 3), (4, 3), (-1, 3)])
def test_there_is_no_proof_of_nothing_nor_of_more(earlier: int, later: int) -> None:
    with pytest.raises(ValueError, match="no such proof"):
        proof(earlier, later)
