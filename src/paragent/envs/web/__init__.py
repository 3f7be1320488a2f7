"""The web: a real browser behind a gate, pages as text with numbered elements, and search."""
