"""The far side: what runs inside a worker process, whichever engine carried it there."""
