"""`carpool bench rebalance`: how long partitions pause when members join, leave and are killed."""
