"""Sums of products: matrix products and convolutions, through tiles in shared memory."""
