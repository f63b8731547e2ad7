"""Strategies for any target: loop nests, and contractions in tiles of registers."""
