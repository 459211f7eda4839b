"""Gets machines from providers: one file for each kind of provider, all behind one contract."""
