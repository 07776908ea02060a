"""Workflows in the generator: what comes after a retrieval, and after a generated text."""
