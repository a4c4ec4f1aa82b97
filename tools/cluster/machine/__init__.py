"""Manages a box's share of this machine: its processes, its ports, and the record of its owner."""
