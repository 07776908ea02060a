"""Prompts, citations, dispatch, the LLM engines, and the answer dedup."""
