"""dlbridge."""
