"""What every client of an orchestrator shares: whom it trusts, and what it says when it cannot reach it."""
