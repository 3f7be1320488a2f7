"""OSWorld: a desktop, its task files, its set-up steps and its evaluators."""
