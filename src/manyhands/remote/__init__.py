"""Objects that live on other servers: message, reference, proxy; servers; child processes.

`DistConf` and `concurrent` are light; everything else is loaded when the first agent goes away.
"""

from manyhands.remote.concurrency import concurrent
from manyhands.remote.dist import DistConf

__all__ = ["DistConf", "concurrent"]
