"""The thin edge: who calls, may they, what do they say, and the answer. No rule about jobs lives here."""
