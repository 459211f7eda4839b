"""Simulates, for days on end, a provider of machines that refuses, answers nothing, lists late and loses them."""
