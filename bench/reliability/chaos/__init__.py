"""`carpool bench chaos`: is anything lost or repeated while services and brokers are killed and
paused?
"""
