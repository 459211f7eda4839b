"""Notices that this machine is about to be taken away: who may give them, how they are asked for, and which are believed."""
