"""Serves what GPU time costs: prices, budgets, and usage reports."""
