"""The worker: what runs on the GPU machine."""
