"""A corpus that changes while it is searched: how fresh, how exact, and what it costs."""
