"""TensorFlow Lite models in."""
