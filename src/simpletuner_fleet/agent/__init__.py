"""Contains the worker program, which runs on the GPU machine."""
