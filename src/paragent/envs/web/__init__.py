"""The environment `web`: a browser behind an SSRF proxy, pages as text with numbered elements, and search."""
