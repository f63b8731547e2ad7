"""What ops and computations are, read off their bodies: layout, fusion, precision, and strategies
ask here. Nothing of it knows a target, a pass or an operator's name."""
