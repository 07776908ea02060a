"""Codes: one suite for all kernels."""
