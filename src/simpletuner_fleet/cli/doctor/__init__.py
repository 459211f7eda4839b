"""Implements `simpletuner doctor`, which finds out what is wrong and changes nothing."""
