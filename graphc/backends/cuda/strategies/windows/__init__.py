"""Sliding windows over channels stored last: a patch of outputs for each thread."""
