"""Writes what a training leaves behind and prints: checkpoints, numbers, pictures, the model, a progress bar."""
