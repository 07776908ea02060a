"""What is stored on disk, byte for byte? Every file of an index (format v2). Little-endian."""
