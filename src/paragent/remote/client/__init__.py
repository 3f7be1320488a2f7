"""The caller's side: lazy results, streams, and the link to each server."""
