"""What a computation is: a view of an operand, a contraction, attention, windows."""
