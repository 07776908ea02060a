"""RAGCache (2024): the order of prompts, and warm-ups of whole drafts."""
