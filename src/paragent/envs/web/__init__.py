"""The web: a real browser behind a proxy, pages as text with numbered elements, and search."""
