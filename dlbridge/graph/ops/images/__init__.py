"""Images resized and cropped."""
