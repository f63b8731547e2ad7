"""What became of a model's layers, and why, for people and as data."""
