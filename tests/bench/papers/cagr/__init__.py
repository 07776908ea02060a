"""The figures of CaGR-RAG: what is drawn, and that the paper's settings are its own."""
