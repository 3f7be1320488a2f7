"""An environment and an agent for paragent."""
