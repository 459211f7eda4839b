"""What pages show of jobs: rows, columns, states, the fields of the Train form."""
