"""The plans of searcher and generator without a disk or an LLM, for the figures of papers."""
