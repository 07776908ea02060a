"""What holds under failures and load: chaos, rebalance, priorities."""
