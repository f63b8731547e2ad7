"""The strategies of GPUs. The last, a thread per output element, always matches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphc.backends.cuda.machines import DEFAULT_ARCH, machine
from graphc.backends.cuda.strategies.attention.flash_decoding import lower_flash_decoding
from graphc.backends.cuda.strategies.attention.flash_float32 import lower_flash_float32
from graphc.backends.cuda.strategies.attention.flash_tiles import lower_flash_matrix_cores
from graphc.backends.cuda.strategies.contraction.matrix_cores import lower_matrix_cores
from graphc.backends.cuda.strategies.contraction.shared_tiles import lower_shared_tiles
from graphc.backends.cuda.strategies.contraction.split_k import lower_split_k
from graphc.backends.cuda.strategies.flat import lower_flat
from graphc.backends.cuda.strategies.rows.row_reductions import lower_rows
from graphc.backends.cuda.strategies.windows.kernel import lower_windows
from graphc.passes.analysis.computation import Computation
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.program import Strategy
from graphc.passes.schedule.choosing import Choose, take_first


def strategies(arch: str = DEFAULT_ARCH, choose: Choose = take_first) -> Sequence[Strategy]:
    """Attention, contractions, row reductions; for everything else a thread per output element.
    Tiles are those that a model of the architecture takes for the fastest, or else `choose`."""
    gpu = machine(arch)

    def lower(computation: Computation) -> Lowered:
        """What the first strategy that matches makes of the rest of a computation."""
        lowered = (strategy(computation) for strategy in candidates)
        return next(outcome for outcome in lowered if isinstance(outcome, Lowered))

    candidates: list[Strategy] = [
        partial(lower_flash_decoding, gpu=gpu),
        partial(lower_flash_matrix_cores, gpu=gpu),
        partial(lower_flash_float32, gpu=gpu),
        partial(lower_split_k, gpu=gpu, lower=lower),
        partial(lower_matrix_cores, gpu=gpu, choose=choose),
        partial(lower_windows, gpu=gpu),
        partial(lower_shared_tiles, gpu=gpu, choose=choose),
        lower_rows,
        lower_flat,
    ]
    return candidates
