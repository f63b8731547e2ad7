"""Flash attention: scores, softmax and values in one kernel, no matrix of scores in memory."""
