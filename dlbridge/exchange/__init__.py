"""Take a tensor, fit it to its consumer, give it: what all frameworks share."""
