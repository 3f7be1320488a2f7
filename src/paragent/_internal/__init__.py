"""Shared internals. Not public: they may change at any time."""
