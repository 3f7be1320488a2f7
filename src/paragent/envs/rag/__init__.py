"""The environment `rag`: questions about a knowledge base, searched with BM25 and optionally embeddings."""
