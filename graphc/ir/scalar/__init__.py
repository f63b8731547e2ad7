"""Scalar operations, and replacements for those that a machine lacks."""
