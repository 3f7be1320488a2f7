"""The agent of a machine with a screen: OSWorld's whole guest protocol.

It runs inside a machine, with Debian's Python and the shared libraries that a desktop has anyway (X11, XTEST). It calls them
with ctypes, because Python bindings take seconds to import under emulation.

`__main__.py` starts it, `session.py` starts the desktop, and `server.py` answers requests.
"""
