"""Expressions, types, graphs, kernels and programs; the operators; the interpreters."""
