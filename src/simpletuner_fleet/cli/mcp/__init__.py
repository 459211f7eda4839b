"""`simpletuner mcp`: the fleet for an agent, by the Model Context Protocol over standard input and output."""
