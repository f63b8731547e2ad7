"""What operators that are no expression per element are made of."""
