"""Measurements of manyhands side by side with its peers: `make bench`, or `python -m bench --list`."""
