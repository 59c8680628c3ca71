"""Tile, pad, one-hot."""
