"""What the way through the services costs: claims, overhead, priorities."""
