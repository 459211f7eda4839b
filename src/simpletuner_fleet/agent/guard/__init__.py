"""Trainers' processes: started, held by a lease, watched, and ended to the last one."""
