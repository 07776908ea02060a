"""Published ways to search, as baselines: query by query, as EdgeRAG and CaGR-RAG print it.

They run on the searcher's memory, disk engines and scan, so that only the algorithm differs.
"""
