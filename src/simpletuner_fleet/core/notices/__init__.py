"""Decides who is told of what, when and how often, without a clock, a network or a database."""
