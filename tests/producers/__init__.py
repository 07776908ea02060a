"""The client that applications publish with."""
