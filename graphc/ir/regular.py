"""Regular expressions in RE2's syntax, matched in time linear in the text.

The tree of a pattern becomes states of an automaton (Thompson, "Regular expression search
algorithm", 1968). A text is read once, from its end to its begin: at each place the states from
which a match can be completed are known, in groups, one group for each place where such a match
ends, the last place first. A state belongs to the first group that has it, so what is known of the
first state of the pattern is where the longest match from that place ends. The groups that follow
from groups and a character are kept (a deterministic automaton, made as it is met). Nothing
backtracks, so a pattern of somebody's cannot make a match take for ever; its size is bounded by
MAX_STATES.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from graphc.errors import ModelError
from graphc.ir.regular_syntax import WORD, At, Chars, Choice, Repeat, Sequence, parse, shown, within

MAX_STATES = 20_000
MAX_KEPT = 1 << 18  # states, of all steps that are kept for an automaton
DONE = 0  # the state of a match that is complete

Groups = tuple[frozenset[int], ...]
Step = tuple[Groups, tuple[int, ...]]  # the groups, and the former group that each comes from


class Pattern:
    """A pattern that texts can be compared with and searched for."""

    def __init__(self, pattern: str):
        self.text = pattern
        self.states: list[Any] = [None]  # Chars and At, or None
        self.preceding: list[list[int]] = [[]]  # the states that a state follows
        self.known: dict[Chars, Chars] = {}
        self.start = self.add(parse(pattern), DONE)
        self.places = any(isinstance(what, At) for what in self.states)
        self.forget()

    def forget(self) -> None:
        self.steps: dict[Any, Step] = {}
        self.same: dict[Groups, Groups] = {}  # one object for equal ones: quickly compared
        self.holding: dict[str, set[int]] = {}  # the sets that hold a character, by id
        self.kept = 0

    # ------------------------------------------------------------ the automaton

    def new(self, what: Any, *after: int) -> int:
        """A state that `after` follows; `what` has to be read, or to hold, on the way."""
        if len(self.states) >= MAX_STATES:
            raise ModelError(f"pattern {shown(self.text)} comes to more than {MAX_STATES} states")
        if isinstance(what, Chars):
            what = self.known.setdefault(what, what)
        self.states.append(what)
        self.preceding.append([])
        state = len(self.states) - 1
        for following in after:
            self.preceding[following].append(state)
        return state

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
            self.preceding[self.add(tree.part, first)].append(first)
        for _ in range((tree.most or 0) - tree.least):
            first = self.new(None, self.add(tree.part, first), after)
        for _ in range(tree.least):
            first = self.add(tree.part, first)
        return first

    # ------------------------------------------------------------ matching

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches the whole of a text."""
        return self.ends(text, only_whole=True)[0] >= 0

    def ends(self, text: str, only_whole: bool = False) -> list[int]:
        """Where the longest match from each place of a text ends, of len(text) + 1 places; -1 if
        there is none. If `only_whole`, only matches that end with the text count."""
        longest = [-1] * (len(text) + 1)
        groups: Groups = ()
        ends: list[int] = []  # of the groups
        for at in range(len(text), -1, -1):
            char = text[at : at + 1]
            place = _places(text[at - 1 : at] if at else "", char) if self.places else frozenset()
            begins = not (only_whole and at < len(text))
            key = (groups, char, place, begins)
            step = self.steps.get(key)
            if step is None:
                step = self.steps[key] = self.step(*key)
            groups, origins = step
            ends = [at if origin < 0 else ends[origin] for origin in origins]
            if not groups and only_whole:
                break
            longest[at] = next((e for g, e in zip(groups, ends) if self.start in g), -1)
        return longest

    def step(self, groups: Groups, char: str, place: frozenset[str], begins: bool) -> Step:
        """The groups before a character, given those after it, and with a match that ends here
        if one `begins` to be read here."""
        taken: set[int] = set()
        made, origins = [], []
        for number, group in enumerate(groups):
            before = self.reached(self.reading(char, group), place, taken)
            if before:
                made.append(before)
                origins.append(number)
        if begins:
            made.append(self.reached([DONE], place, taken))
            origins.append(-1)
        self.kept += 1 + sum(map(len, made))
        if self.kept > MAX_KEPT:
            self.forget()
        return self.same.setdefault(tuple(made), tuple(made)), tuple(origins)

    def reading(self, char: str, group: frozenset[int]) -> Iterator[int]:
        """The states that go to one of a group by reading a character."""
        holding = self.holding.get(char)
        if holding is None:
            holding = self.holding[char] = {id(c) for c in self.known if c.holds(char)}
        for state in group:
            for before in self.preceding[state]:
                if id(self.states[before]) in holding:
                    yield before

    def reached(
        self, states: Iterable[int], place: frozenset[str], taken: set[int]
    ) -> frozenset[int]:
        """These states and those that go to them without a character, at a place, but for those
        that are `taken`, to which they are added."""
        reached = set(states) - taken
        stack = list(reached)
        taken |= reached
        while stack:
            for before in self.preceding[stack.pop()]:
                what = self.states[before]
                free = what is None or (isinstance(what, At) and what.place in place)
                if free and before not in taken:
                    taken.add(before)
                    reached.add(before)
                    stack.append(before)
        return frozenset(reached)


def _places(before: str, after: str) -> frozenset[str]:
    """What a place between two characters is; "" is none."""
    edge = within(WORD, before) != within(WORD, after)
    kinds = {"edge" if edge else "no edge"}
    kinds |= {"begin"} if not before else set()
    kinds |= {"end"} if not after else set()
    kinds |= {"line begin"} if before in ("", "\n") else set()
    kinds |= {"line end"} if after in ("", "\n") else set()
    return frozenset(kinds)
