"""Activations, softmax, losses, bias."""
