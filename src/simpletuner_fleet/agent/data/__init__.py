"""What an attempt needs before it starts: datasets and the checkpoint to go on from."""
