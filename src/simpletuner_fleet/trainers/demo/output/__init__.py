"""What a training leaves behind and what it prints: checkpoints, numbers, pictures, the model, a progress bar."""
