"""Raising an exception in another thread."""

from __future__ import annotations

__all__ = ["raise_in_thread"]


def raise_in_thread(thread: int, error: type[BaseException]) -> None:
    """Have Python code in another thread meet `error` at its next step; native code meets it when it returns."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
