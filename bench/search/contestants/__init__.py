"""Ways to search that are compared: Carpool's modes, FAISS."""
