"""Turns measured epochs into comparisons, bars, a table and a picture."""
