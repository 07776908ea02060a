"""Embedding models: shapes, norms, fingerprints, errors."""
