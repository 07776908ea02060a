"""Behaviour under failures and load: chaos, rebalance, priorities."""
