"""The code that runs inside a worker process, the same for every engine."""
