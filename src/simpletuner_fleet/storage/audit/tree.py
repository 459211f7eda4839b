"""Builds the Merkle tree over the audit log from its rows: whole blocks are cached, the rest is read when needed."""

from simpletuner_fleet.core import merkle
from simpletuner_fleet.engine.fleet import Fleet

BLOCK = 256


class LogIncomplete(Exception):
    """Entries of the audit log are missing, or stand in the wrong place."""


class AuditTree:
    """Computes roots and proofs of the Merkle tree over the audit log. Leaf 0 is entry 1.

    A block that was cached stays as it was, whatever becomes of its rows.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._blocks: list[bytes] = []

    async def root(self, size: int) -> bytes:
        return self._subtree(0, size, await self._leaves(size))

    async def proof(self, earlier: int, later: int) -> list[bytes]:
        leaves = await self._leaves(later)
        block = earlier // BLOCK
        if earlier % BLOCK and block not in leaves:
            leaves[block] = await self._read(block, BLOCK)
        return merkle.consistency_proof(earlier, later, lambda start, end: self._subtree(start, end, leaves))

    async def _leaves(self, size: int) -> dict[int, list[bytes]]:
        """Caches all whole blocks, and returns the leaves of the block in which a log of this size ends."""
        while len(self._blocks) < size // BLOCK:
            self._blocks.append(merkle.root_of(await self._read(len(self._blocks), BLOCK)))
        last = size // BLOCK
        return {last: await self._read(last, size % BLOCK)} if size % BLOCK else {}

    async def _read(self, block: int, count: int) -> list[bytes]:
        first = block * BLOCK + 1
        entries = await self._fleet.read(lambda view: view.audit_hashes(first - 1, count))
        if [seq for seq, _ in entries] != list(range(first, first + count)):
            raise LogIncomplete(f"entries {first} to {first + count - 1} are not all there")
        return merkle.leaves_of([entry_hash for _, entry_hash in entries])

    def _subtree(self, start: int, end: int, leaves: dict[int, list[bytes]]) -> bytes:
        size = end - start
        if size == 0:
            return merkle.EMPTY
        block, offset = divmod(start, BLOCK)
        if size == BLOCK:
            return self._blocks[block]
        if size < BLOCK:
            return merkle.root_of(leaves[block][offset : offset + size])
        middle = merkle.split(size)
        left = self._subtree(start, start + middle, leaves)
        return merkle.node(left, self._subtree(start + middle, end, leaves))
