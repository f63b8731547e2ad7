"""Scalar operations, and what stands for those that a machine lacks."""
