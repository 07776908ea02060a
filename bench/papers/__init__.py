"""Figures of published papers, measured with our code."""
