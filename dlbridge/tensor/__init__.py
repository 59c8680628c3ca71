"""The Tensor: views, values, text, pickling, and where its memory comes from."""
