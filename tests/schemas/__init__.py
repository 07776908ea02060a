"""The wire contract: every record encoded, decoded and refused."""
