"""Which waiting prompt is next, given what the server has cached."""
