"""`carpool bench chaos`: is anything lost or repeated while processes are killed and paused?"""
