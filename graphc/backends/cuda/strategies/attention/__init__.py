"""Flash attention: scores, softmax and values in one kernel, without a matrix of scores in memory."""
