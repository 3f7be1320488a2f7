"""Getters: coroutines `(context, config)` that return a value of the machine, or the path of a file copied from it.

Values must be JSON, because metrics run in child processes. None means that the requested value does not exist.
"""
