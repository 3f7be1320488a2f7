"""The environment `py`: programming tasks with a sandboxed interpreter, scored by tests or by output."""
