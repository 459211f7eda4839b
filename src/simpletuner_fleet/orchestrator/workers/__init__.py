"""Workers: how they come, stay, report, are administered and go."""
