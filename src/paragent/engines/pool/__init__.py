"""The near side of workers: a supervisor for each process, and who gets which call."""
