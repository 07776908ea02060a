"""OpenAI's requests as questions. Pure."""
