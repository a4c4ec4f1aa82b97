"""Loaders that take part: each is one file, written as an expert of its library would write it."""
