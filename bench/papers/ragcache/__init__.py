"""RAGCache (2024): the order of prompts, the memory on the host, and warm-ups of whole drafts."""
