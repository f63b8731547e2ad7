"""Operator fusion: which ops become one kernel. Importing this registers its passes."""

from graphc.passes.fusion import attention, fuse, gates, product_merging, reductions, siblings  # noqa: F401
