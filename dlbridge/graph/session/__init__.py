"""Sessions: they run a graph."""

from dlbridge.graph.session.session import InteractiveSession, Session

__all__ = ["InteractiveSession", "Session"]
