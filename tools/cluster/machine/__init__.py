"""Keeps what a box has of this machine: its processes, its ports, and the record of who owns it."""
