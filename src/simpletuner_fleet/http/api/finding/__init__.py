"""Jobs that are looked for, written on and acted on together."""
