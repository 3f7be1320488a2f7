"""`qemu`: machines of this host, each a copy-on-write clone of one frozen machine.

`hardware.py` says what a machine is made of, `monitor.py` speaks to one, `golden.py` boots one and freezes it, `provider.py`
makes clones of that.
"""

from paragent.machines.providers.qemu.provider import QemuProvider

__all__ = ["QemuProvider"]
