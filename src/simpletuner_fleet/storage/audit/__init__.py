"""Proves that the audit log is unchanged: by its Merkle tree, and by signed heads outside the database."""
