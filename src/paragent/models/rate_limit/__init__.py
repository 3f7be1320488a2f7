"""One limit of concurrent requests for all workers of a run: decided at one place, divided among those who ask.

`division` decides, without I/O; `server` runs with the driver; `member` is a worker's end.
"""
