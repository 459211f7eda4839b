"""The fleet on virtual time: the real orchestrator and the real agent core, with chance and faults from one seed."""
