"""Notifies people: keeps what they have set up, and sends it while this orchestrator leads."""
