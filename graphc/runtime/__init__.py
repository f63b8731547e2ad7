"""What runs compiled models: plans of their parts, executables by shape, feeds, saved models."""
