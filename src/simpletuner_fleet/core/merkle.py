"""Builds the Merkle tree over the audit log as in RFC 9162, and proofs that a later log extends an earlier one."""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

EMPTY = sha256(b"").digest()
Subtree = Callable[[int, int], bytes]
"""Returns the hash of the tree over the leaves from the first number up to, and without, the second."""


def leaves_of(entry_hashes: Iterable[str]) -> list[bytes]:
    """Returns the leaves over these entries, all at once: every entry of the log passes here."""
    return [sha256(b"\0" + entry_hash.encode()).digest() for entry_hash in entry_hashes]


def leaf(entry_hash: str) -> bytes:
    return leaves_of((entry_hash,))[0]


def _parents(level: Sequence[bytes]) -> list[bytes]:
    """Returns the nodes over each two of a level; an odd one at its end has none."""
    pairs = zip(level[::2], level[1::2], strict=False)
    return [sha256(b"\1" + left + right).digest() for left, right in pairs]


def node(left: bytes, right: bytes) -> bytes:
    return _parents((left, right))[0]


def split(size: int) -> int:
    """Returns the largest power of two that is smaller than the size."""
    return 1 << (size - 1).bit_length() - 1


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Returns the root of the tree, built level by level; an odd node at the end of a level moves up unchanged."""
    if not leaves:
        return EMPTY
    level = leaves
    while len(level) > 1:
        left_over = level[len(level) & ~1 :]
        level = [*_parents(level), *left_over]
    return level[0]


def consistency_proof(earlier: int, later: int, subtree: Subtree) -> list[bytes]:
    """Returns the proof that the first `earlier` of `later` leaves are those of the earlier tree."""
    if not 0 < earlier <= later:
        raise ValueError("there is no such proof")
    return _proof(earlier, 0, later, subtree, whole=True)


def _proof(earlier: int, start: int, end: int, subtree: Subtree, *, whole: bool) -> list[bytes]:
    size = end - start
    if earlier == size:
        return [] if whole else [subtree(start, end)]
    middle = split(size)
    if earlier <= middle:
        return [*_proof(earlier, start, start + middle, subtree, whole=whole), subtree(start + middle, end)]
    rest = _proof(earlier - middle, start + middle, end, subtree, whole=False)
    return [*rest, subtree(start, start + middle)]


def is_consistent(
    earlier: int, later: int, earlier_root: bytes, later_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Tells whether the proof shows that the later tree holds all leaves of the earlier one, in their places."""
    if not 0 < earlier <= later:
        return False
    if earlier == later:
        return not proof and earlier_root == later_root
    path = list(proof) if earlier & (earlier - 1) else [earlier_root, *proof]
    if not path:
        return False
    at, last = earlier - 1, later - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    old = new = path[0]
    for step in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            old, new = node(step, old), node(step, new)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            new = node(new, step)
        at, last = at >> 1, last >> 1
    return last == 0 and old == earlier_root and new == later_root
