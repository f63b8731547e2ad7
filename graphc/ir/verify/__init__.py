"""Verifiers of graphs, kernels and programs."""
