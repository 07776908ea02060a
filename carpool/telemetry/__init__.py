"""Metrics in one typed list, JSON logs, and the three HTTP pages of a process."""
