"""The loop, delivery, takeovers, dead letters, on the memory broker and on Apache Kafka."""
