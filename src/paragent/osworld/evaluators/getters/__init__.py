"""What is there: each coroutine takes a place and a task's description, and returns a value or the path of a file.

Values are JSON, for metrics run in other processes. None stands for what is not there.
"""
