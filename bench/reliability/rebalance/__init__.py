"""`carpool bench rebalance`: how long do partitions pause when members come, go and are killed
under load?
"""
