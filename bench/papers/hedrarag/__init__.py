"""HedraRAG (SOSP 2025): warm-ups that fill an underused server."""
