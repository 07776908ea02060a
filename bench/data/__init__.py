"""What is searched and asked: the evaluation data, indexes of it, and large grown sets."""
