"""Computations in other forms: their spaces, guards, pieces and numbers."""
