"""Front ends: ONNX models and graphs built in Python become graph IR, and graphs become ONNX."""
