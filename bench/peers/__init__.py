"""Peers that get an environment of their own, because what they need is not what we need."""
