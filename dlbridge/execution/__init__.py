"""The back end of a graph: which nodes run, in which order and framework, and how values cross.

It knows operations by the protocol `registry.Node` alone, and nothing of the front end.
"""
