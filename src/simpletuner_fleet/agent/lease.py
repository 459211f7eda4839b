"""Computes how long a trainer may run without an answer from the orchestrator."""

LEASE_MARGIN_SHARE = 0.15
LEASE_MARGIN_MAX_S = 10.0


def lease_for(heartbeat_timeout_s: float) -> float:
    """Returns a lease that ends before the orchestrator may give the job away."""
    return heartbeat_timeout_s - min(LEASE_MARGIN_MAX_S, LEASE_MARGIN_SHARE * heartbeat_timeout_s)
