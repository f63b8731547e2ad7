"""How long kernels take on a GPU that is not at hand, from their machine code.

`sass.py` reads machine code, `sample.py` counts what a block does, `figures.py` has what is assumed
of GPUs, with sources, and `model.py` makes times of them; `report.py` tells them.
"""
