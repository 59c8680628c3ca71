"""Graphs over several tasks: clusters, where nodes run, and the parts of a graph."""
