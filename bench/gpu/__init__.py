"""What only a machine with a GPU can measure: README.md lists the steps."""
