"""Sums of products in vector registers, for the M-profile Vector Extension (Helium)."""
