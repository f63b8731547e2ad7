"""Regular expressions in RE2's syntax, matched in time linear in the text.

The tree of a pattern becomes states of an automaton (Thompson, "Regular expression search
algorithm", 1968), and sets of states are followed at once; what follows a set for a character is
kept (the states of a deterministic automaton, made as they are met). Nothing backtracks, so a
pattern of somebody's cannot make a match take for ever; its size is bounded by MAX_STATES.
"""

from __future__ import annotations

from typing import Any

from graphc.errors import ModelError
from graphc.ir.regular_syntax import WORD, At, Chars, Choice, Repeat, Sequence, parse, shown, within

MAX_STATES = 20_000
MAX_KEPT = 1 << 18  # states, of all steps that are kept for an automaton


class Pattern:
    """A pattern that texts can be compared with."""

    def __init__(self, pattern: str):
        self.text = pattern
        self.states: list[tuple[Any, list[int]]] = [(None, [])]  # (Chars or At, what follows)
        self.known: dict[Chars, Chars] = {}
        self.start = self.add(parse(pattern), 0)
        self.places = any(isinstance(what, At) for what, _ in self.states)
        self.forget()

    def forget(self) -> None:
        self.steps: dict[Any, frozenset[int]] = {}
        self.holding: dict[str, set[int]] = {}  # the sets that hold a character, by id
        self.kept = 0

    def new(self, what: Any, *after: int) -> int:
        if len(self.states) >= MAX_STATES:
            raise ModelError(f"pattern {shown(self.text)} comes to more than {MAX_STATES} states")
        if isinstance(what, Chars):
            what = self.known.setdefault(what, what)
        self.states.append((what, list(after)))
        return len(self.states) - 1

    def add(self, tree: Any, after: int) -> int:
        """The first of the states of a tree that `after` follows."""
        if isinstance(tree, Sequence):
            for part in reversed(tree.parts):
                after = self.add(part, after)
            return after
        if isinstance(tree, Choice):
            return self.new(None, *(self.add(part, after) for part in tree.parts))
        if not isinstance(tree, Repeat):
            return self.new(tree, after)
        first = after
        if tree.most is None:
            first = self.new(None, after)
            self.states[first][1].append(self.add(tree.part, first))
        for _ in range((tree.most or 0) - tree.least):
            first = self.new(None, self.add(tree.part, first), after)
        for _ in range(tree.least):
            first = self.add(tree.part, first)
        return first

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches the whole of a text."""
        current, before = frozenset((self.start,)), ""
        for char in text:
            place = _places(before, char) if self.places else frozenset()
            key = (current, place, char)
            after = self.steps.get(key)
            if after is None:
                self.kept += len(current) + 1
                if self.kept > MAX_KEPT:
                    self.forget()
                after = self.steps[key] = self.step(current, place, char)
            if not after:
                return False
            current, before = after, char
        return 0 in self.reached(current, _places(before, ""))

    def step(self, current: frozenset[int], place: frozenset[str], char: str) -> frozenset[int]:
        """The states after a character."""
        holding = self.holding.get(char)
        if holding is None:
            holding = self.holding[char] = {id(c) for c in self.known if c.holds(char)}
        reached = [self.states[state] for state in self.reached(current, place)]
        return frozenset([after[0] for what, after in reached if id(what) in holding])

    def reached(self, states: frozenset[int], place: frozenset[str]) -> set[int]:
        """These states and those that follow without a character, at a place."""
        reached, stack = set(states), list(states)
        while stack:
            what, after = self.states[stack.pop()]
            if what is None or (place and isinstance(what, At) and what.place in place):
                for state in after:
                    if state not in reached:
                        reached.add(state)
                        stack.append(state)
        return reached


def _places(before: str, after: str) -> frozenset[str]:
    """What a place between two characters is; "" is none."""
    edge = within(WORD, before) != within(WORD, after)
    found = {"edge" if edge else "no edge"}
    found |= {"begin"} if not before else set()
    found |= {"end"} if not after else set()
    found |= {"line begin"} if before in ("", "\n") else set()
    found |= {"line end"} if after in ("", "\n") else set()
    return frozenset(found)
