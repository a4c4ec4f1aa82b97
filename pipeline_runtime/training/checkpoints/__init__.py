"""Checkpoints: a folder per checkpoint, its header, and the types that its state may hold."""
