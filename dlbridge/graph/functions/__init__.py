"""What users call to build a graph, by family."""
