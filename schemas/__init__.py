"""What travels? Records, topics, headers and the codec: the wire contract."""
