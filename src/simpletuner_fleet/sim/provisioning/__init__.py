"""Machines from a provider that refuses, forgets to answer, lists late and loses them: simulated for days on end."""
