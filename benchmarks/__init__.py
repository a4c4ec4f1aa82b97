"""Measurements behind the README's claims about speed: `make bench`; see README.md here."""
