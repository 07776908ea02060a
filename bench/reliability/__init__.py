"""Behaviour when things break: chaos, and torn ends of transactions."""
