"""Readers of one machine: threads of the trainer, or processes beside it, without Ray."""
