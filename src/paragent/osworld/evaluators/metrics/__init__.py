"""Metrics: functions `(result, expected, **options)` that return a score from 0 to 1.

They run in child processes with limits. Any exception scores 0, except `UnsupportedCheck`.
"""
