"""What does every service stand on? The loop over Kafka, disk formats, the model loader, settings,
telemetry.
"""

__version__ = "0.1.0"
