"""How does Carpool talk to brokers? Nothing here imports the loop or a service."""
