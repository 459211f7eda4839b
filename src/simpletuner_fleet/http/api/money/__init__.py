"""What GPU time costs: prices, budgets, and reports of use."""
