"""Where the paths of a diverged warp meet again: the immediate post-dominator of a branch.

Blocks are numbered, and one more number stands for the end of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def joins(count: int, targets: Mapping[int, int], ends: Mapping[int, bool]) -> dict[int, int]:
    """For each branch among `count` instructions, where all ways from it meet; -1 if nowhere but at
    the end. `targets`: where a branch leads; it may also go on to the next instruction, unless it
    is in `ends`. `ends`: instructions that nothing follows (True), or that may end (False)."""
    leaders = {0, *targets.values()}
    leaders |= {n + 1 for n in (*targets, *ends) if n + 1 < count}
    firsts = sorted(n for n in leaders if n < count)
    number = {first: block for block, first in enumerate(firsts)}
    lasts = [*(n - 1 for n in firsts[1:]), count - 1]
    end = len(firsts)
    followers: list[list[int]] = []
    for last in lasts:
        after = [] if ends.get(last) else [number.get(last + 1, end)]
        after += [number.get(targets[last], end)] if last in targets else []
        after += [end] if last in ends and last not in targets else []
        followers.append(after)
    parents = post_dominators(followers, end)
    block_of = dict(zip(lasts, range(len(lasts))))
    places = {branch: parents[block_of[branch]] for branch in targets}
    return {b: -1 if p is None or p == end else firsts[p] for b, p in places.items()}


def post_dominators(followers: Sequence[Sequence[int]], end: int) -> list[int | None]:
    """The immediate post-dominator of each block, by Cooper, Harvey and Kennedy; None of those from
    which nothing leads to the end. Of a reversed graph these are immediate dominators."""
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for block, after in enumerate(followers):
        for follower in after:
            before[follower].append(block)
    order, seen = [], {end}
    stack = [(end, iter(before[end]))]
    while stack:  # postorder of the reversed graph
        block, rest = stack[-1]
        step = next((b for b in rest if b not in seen), None)
        if step is None:
            order.append(stack.pop()[0])
        else:
            seen.add(step)
            stack.append((step, iter(before[step])))
    rank = {block: place for place, block in enumerate(order)}
    parents: list[int | None] = [None] * (end + 1)
    parents[end] = end
    changed = True
    while changed:
        changed = False
        for block in reversed(order[:-1]):
            known = [f for f in followers[block] if parents[f] is not None]
            new = known[0]
            for other in known[1:]:
                while new != other:
                    while rank[new] < rank[other]:
                        new = parents[new]  # type: ignore[assignment]
                    while rank[other] < rank[new]:
                        other = parents[other]  # type: ignore[assignment]
            if parents[block] != new:
                parents[block], changed = new, True
    return parents[:end]
