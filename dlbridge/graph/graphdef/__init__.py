"""GraphDefs: import, and rewriting of messages."""
