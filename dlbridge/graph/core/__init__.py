"""The graph itself: operations, tensors, op definitions, attributes, scopes."""
