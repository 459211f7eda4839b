"""Keeps a trainer's output on the worker, folds its progress lines, and sends it on."""
