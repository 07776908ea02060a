"""What the way through the services costs: claims, traffic, overhead, priorities, backlog."""
