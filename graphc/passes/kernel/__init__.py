"""Passes over kernels."""
