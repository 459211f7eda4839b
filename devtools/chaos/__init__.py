"""`./dev chaos`: real servers, workers and trainers, killed, frozen and cut off at random moments, then judged."""
