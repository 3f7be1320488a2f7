"""The smallest program with plain Ray."""

import time

import ray


def double(number: int) -> int:
    return 2 * number


ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
print(ray.get(ray.remote(double).remote(21)), time.monotonic())
