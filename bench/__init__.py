"""Speed against the promised figures: every benchmark measures its yardstick in the same run."""
