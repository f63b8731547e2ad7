"""Post-training quantisation: from a float model and samples to standard QDQ ONNX.

samples      the calibration data, one batch at a time
layers       which operators become integer, and which values share a scale
statistics   what is kept of a value: range, histogram, moments
ranges       scales and zero points from statistics
moments      second moments of what a layer reads, for the rounding of its weights
rounding     weights in integers: nearest, or with error feedback
rewriting    the graph with QuantizeLinear and DequantizeLinear in place
measuring    how far a model is from another on samples
quantiser    the way through, and its report
"""
