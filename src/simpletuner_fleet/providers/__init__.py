"""Where machines come from: one file for each kind of provider, behind one contract."""
