"""`carpool bench search`: what each way of searching costs at its own setting for a recall."""
