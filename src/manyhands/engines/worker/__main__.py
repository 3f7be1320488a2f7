"""A worker process: `python -m manyhands.engines.worker SOCKET_FD STARTS_FD`, started by its supervisor."""

import sys

from manyhands.engines.worker.process import work

work(socket_fd=int(sys.argv[1]), starts_fd=int(sys.argv[2]))
