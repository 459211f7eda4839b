"""Writes calls to the orchestrator as steps; two small drivers take them, one blocking and one with asyncio."""
