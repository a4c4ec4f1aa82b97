"""What the README claims about speed, measured: `make bench`; see README.md beside this file."""
