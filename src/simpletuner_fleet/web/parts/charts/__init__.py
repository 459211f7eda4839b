"""Charts that pages draw: of GPUs, of use, of a queue over time."""
