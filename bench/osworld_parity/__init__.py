"""Compare paragent's OSWorld metrics with OSWorld's own on generated inputs: `make osworld-parity`."""
