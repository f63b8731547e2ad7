"""The phases of a graph, from the earliest to the last: what passes have made of it so far."""

PHASES = (
    "imported", "typed", "canonical", "laid_out", "fused", "lowered", "planned", "emitted",
)  # fmt: skip
