"""Exchanges with the real libraries: the table of all pairs, and one file per library."""
