"""Derivatives of graphs: reverse and forward mode from the bodies of operators."""
