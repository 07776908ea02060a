"""Translates between OpenAI's shapes and records. Pure."""
