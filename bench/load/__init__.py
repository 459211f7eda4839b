"""Workers and submitters that speak the protocol and run nothing."""
