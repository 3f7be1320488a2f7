"""Programs: an interpreter in a sandbox, answers scored by tests or by output."""
