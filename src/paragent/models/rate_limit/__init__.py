"""One rate limit for all workers of a run: the driver decides how many concurrent requests an endpoint gets and divides them.

`limiter` decides, without I/O; `server` runs in the driver's process; `client` runs in each worker.
"""
