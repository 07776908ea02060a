"""What every client of the seam does, whichever broker it talks to: in memory, embedded, real
Kafka.
"""
