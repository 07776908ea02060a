"""Policies of vLLM's KV cache on the host. vLLM's process imports them by file name alone."""
