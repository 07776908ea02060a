"""How does a person run it? The command `carpool`."""
