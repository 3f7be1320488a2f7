"""Benchmarks of paragent and of its peers on the same work: `make bench`, or `python -m bench --list`."""
