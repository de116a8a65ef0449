"""Emulated accelerators: who reads what, how long each step takes, and the loop that waits, computes and meets."""
