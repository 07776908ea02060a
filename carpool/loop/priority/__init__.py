"""The order and the rate at which records of several priority classes are accepted."""
