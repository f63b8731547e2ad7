"""Microcontrollers: a program as a bundle of C99 sources without malloc, stdio or recursion."""

from graphc.backends.micro_c.bundle import BundleOptions, bundle, model_of, write_bundle

__all__ = ["BundleOptions", "bundle", "model_of", "write_bundle"]
