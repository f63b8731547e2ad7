"""Row-wise execution: chains of layers a band of rows at a time, through line buffers."""
