"""HedraRAG (SOSP 2025): workflows under load, searches ahead, warm-ups that fill a server."""
