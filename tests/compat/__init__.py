"""Bytes of older formats, stored, that must stay readable."""
