"""`qemu`: machines are QEMU processes of this host, each a copy-on-write clone of one frozen machine.

`hardware.py` describes a machine and builds its command line, `process.py` runs and controls one process, `network.py` is its
network namespace, `golden.py` boots a machine and freezes it, and `provider.py` clones the frozen machine.
"""

from paragent.machines.providers.qemu.provider import QemuProvider

__all__ = ["QemuProvider"]
