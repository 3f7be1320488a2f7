"""Shared internals: not for users; everything above may import them."""
