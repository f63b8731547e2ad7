"""Windows over time into steps of one hop: reach.py says which frames an op reads, tracks.py which
frames of each value one window shares with the next, frames.py makes an op for some of its frames,
and step.py the graph of a step."""
