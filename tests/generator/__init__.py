"""Prompts, citations, orders, dispatch, LLM engines, warm-ups, cancels, and reuse of answers."""
