"""Ways to search that are compared: Carpool, FAISS, five other packages. `registry` lists them."""
