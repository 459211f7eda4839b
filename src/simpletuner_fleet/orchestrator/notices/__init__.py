"""Being told: who set up what, and what is sent to them while this orchestrator leads."""
