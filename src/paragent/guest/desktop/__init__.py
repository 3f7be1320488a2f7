"""The guest server of a machine with a screen: all of OSWorld's guest protocol, beside what `guest/agent.py` knows.

It runs inside a machine, on Debian's Python and the shared libraries that a desktop has anyway (X11, XTEST, AT-SPI), which
it calls by ctypes: bindings of their own would take seconds to import under emulation.

`__main__.py` starts it, `session.py` brings up the desktop, `server.py` answers requests; the others have one subject each.
"""
