"""The other orchestrators of the fleet: who leads answers, the others pass requests on to it."""
