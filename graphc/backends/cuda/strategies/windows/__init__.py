"""Sliding windows over channels stored last: depthwise and grouped convolutions, and pooling."""
