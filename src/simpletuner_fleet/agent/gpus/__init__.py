"""The machine's GPUs: found and looked after."""
