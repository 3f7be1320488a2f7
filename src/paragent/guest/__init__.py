"""Programs that run inside a machine. They use the standard library only, because images contain copies of these files."""
