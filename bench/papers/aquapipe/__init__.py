"""AquaPipe (SIGMOD 2025): prompts are computed while the search still runs."""
