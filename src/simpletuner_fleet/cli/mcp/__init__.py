"""Implements `simpletuner mcp`, which serves the fleet to an agent by the Model Context Protocol over stdio."""
