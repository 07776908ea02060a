"""`carpool bench overhead`: what does the way through three services and four topics cost, by
delivery and by brokers?
"""
