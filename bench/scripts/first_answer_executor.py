"""The smallest program with the standard library's pool."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor


def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        answer = pool.submit(double, 21).result()
        print(answer, time.monotonic())
