"""Signs people in with identity providers: asks them over the network, and applies their answers here."""
