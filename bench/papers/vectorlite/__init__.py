"""VectorLiteRAG: which clusters are hot, how long a batch takes, and how many bytes it needs."""
