"""Proofs about the audit log: its Merkle tree, and signed heads outside the database."""
