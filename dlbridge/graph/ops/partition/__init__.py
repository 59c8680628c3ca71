"""Dynamic partition and dynamic stitch."""
