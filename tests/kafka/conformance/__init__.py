"""What every client does at every broker: in memory, embedded, real Kafka."""
