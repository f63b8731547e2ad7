"""Row reductions: softmax, normalisations and sums, by threads that share rows."""
