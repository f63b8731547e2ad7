"""Comparing models value by value: which layer is the first that departs, and by how much."""
