"""Measurements of paragent side by side with its peers: `make bench`, or `python -m bench --list`."""
