"""All services together, on brokers."""
