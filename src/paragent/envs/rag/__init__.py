"""Questions about a knowledge base: reading it, its index, and the environment."""
