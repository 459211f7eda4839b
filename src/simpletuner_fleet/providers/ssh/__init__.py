"""Machines that are there already: hosts on which a worker is started and ended over ssh."""
