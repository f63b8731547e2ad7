"""Digests of a model's files. Beside a model lies a copy of graphc.backends.digests instead."""

from graphc.backends.digests import digest, digests

__all__ = ["digest", "digests"]
