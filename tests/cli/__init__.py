"""Commands, the supervisor and `carpool up`."""
