"""Presentations: whether two are the same, and single properties of one."""
