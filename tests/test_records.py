"""Classes of graphc/records.py against those of the standard library."""

import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field

import pytest

from graphc import records


def made(dataclass, frozen):
    """Classes of a kind, made alike by either decorator."""

    @dataclass(frozen=frozen)
    class Base:
        x: int
        y: list = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)

    @dataclass(frozen=frozen)
    class Derived(Base):
        z: float = 1.5
        only: str = field(default="k", kw_only=True)
        late: dict = field(init=False, default_factory=dict)

        def __post_init__(self):
            self.late["x"] = self.x

        def __repr__(self):
            return "own"

    @dataclass(frozen=frozen, eq=False)
    class Same:
        x: int

    @dataclass(frozen=frozen, kw_only=True)
    class Named:
        x: int
        y: int = 2

    return Base, Derived, Same, Named


@dataclasses.dataclass(frozen=True)
class Known:
    x: int


@records.dataclass(frozen=True)
class Kept:
    """Found by its name, as pickles ask."""

    x: int
    inner: tuple = ()


@pytest.mark.parametrize("frozen", [True, False])
def test_behave_as_those_of_the_library(frozen):
    told = []
    for dataclass in (dataclasses.dataclass, records.dataclass):
        base, derived, same, named = made(dataclass, frozen)
        one, two = base(1, [2], "n"), base(1, y=[2], note="m")
        told.append(
            [
                repr(one), one == two, one == base(2), one == derived(1, [2]), one != two,
                repr(derived(3, only="q")), dataclasses.asdict(derived(4, z=2.0)),
                dataclasses.replace(one, x=9).x, [f.name for f in dataclasses.fields(derived)],
                same(1) == same(1), repr(named(x=1)), str(inspect.signature(derived)),
                [c.__hash__ is None for c in (base, derived, same, named)],
                base.__match_args__, derived.__init__.__qualname__.rpartition("made.")[2],
            ]
        )  # fmt: skip
        for cls, given, options in ((base, (), {}), (named, (1,), {}), (base, (1,), {"what": 2})):
            with pytest.raises(TypeError) as error:
                cls(*given, **options)
            told[-1].append(str(error.value))
    assert told[0] == told[1]


def test_frozen_fields_stay():
    kept = Kept(1)
    for change in (lambda: setattr(kept, "x", 2), lambda: delattr(kept, "x")):
        with pytest.raises(FrozenInstanceError, match="cannot .* field 'x'"):
            change()
    assert (kept, hash(kept)) == (Kept(1), hash(Kept(1))) and kept != Known(1)
    assert len({kept, Kept(1), Kept(2)}) == 2
    assert pickle.loads(pickle.dumps(kept)) == kept and repr(Kept(1)) == "Kept(x=1, inner=())"


@pytest.mark.parametrize("base, derived", [
    (records.dataclass, dataclasses.dataclass), (dataclasses.dataclass, records.dataclass),
])  # fmt: skip
def test_either_derives_from_the_other(base, derived):
    @base(frozen=True)
    class Base:
        x: int

    @derived(frozen=True)
    class Derived(Base):
        y: int = 2

    assert Derived(1) == Derived(1, 2) != Derived(1, 3) and hash(Derived(1)) == hash(Derived(1, 2))
    with pytest.raises(FrozenInstanceError):
        Derived(1).x = 2
    with pytest.raises(TypeError, match="frozen"):

        @derived
        class Open(Base):
            z: int = 3


def test_slots_are_made_by_the_library():
    @records.dataclass(frozen=True, slots=True)
    class Slotted:
        x: int

    assert not hasattr(Slotted(1), "__dict__") and Slotted(1) == Slotted(1)
