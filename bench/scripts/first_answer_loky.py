"""The smallest program with loky."""

import time

from joblib.externals.loky import get_reusable_executor


def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    answer = get_reusable_executor(max_workers=2).submit(double, 21).result()
    print(answer, time.monotonic())
