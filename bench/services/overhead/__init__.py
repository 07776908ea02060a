"""`carpool bench overhead`: the cost of the way through three services and four topics."""
