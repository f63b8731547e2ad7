"""Imports run one way, between modules and between rooms, those inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from graphc.ir.opdef import REGISTRY, find

ROOT = Path(__file__).parents[1]
ROOMS = (  # a room imports from those in the lines above its own
    "errors distribution finite progress provenance records",
    "deadline",
    "collector files config ir memplan runtime.exchange",
    "autodiff",
    "passes.analysis frontend",
    "passes",
    "passes.kernel passes.schedule",
    "passes.lower",
    "runtime.listing runtime.readings",
    "runtime.feeds runtime.plans runtime.recurring runtime.runnable verify bench analysis",
    "runtime.execution backends.behind backends.block backends.digests report",
    "backends.cache backends.cfamily runtime.tiers",
    "backends.tuning",
    "backends.c99 backends.micro_c backends.llvm_cpu backends.cuda",
    "runtime.verified",
    "runtime.saved",
    "runtime.compiled plugins",
    "runtime.model_cache",
    "targets",
    "driver",
    "api",
    "backend demo transforms ray observing streaming",
    "train",
    "quantisation comparing",
    "cli",
    "__main__",
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms.split()}
RETURNS = {  # imports inside functions that close a circle, each for a reason
    ("ir.expr", "ir.text.expr_printer"): "an expression prints itself",
    ("ir.graph", "ir.text.parser"): "a graph is pickled as text",
    ("ir.graph", "ir.text.printer"): "a graph prints itself",
    ("ir.kernel", "ir.text.printer"): "a kernel prints itself",
    ("ir.program", "ir.text.printer"): "a program prints itself",
    ("ir.infer", "ir.build"): "the type of a composite is that of its body, typed as it is built",
    ("ir.infer", "ir.wide_graphs"): "so is that of one whose intermediate values are widened",
    ("ir.opdef", "ir.ops"): "who first looks up an operator has all of them registered",
}


@cache
def sources() -> dict[str, ast.Module]:
    """The modules by name, without the face of the whole, which imports nothing before it is asked,
    and packages that hold a docstring at most."""
    found = {}
    for path in sorted((ROOT / "graphc").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "graphc").with_suffix("").parts)
        tree = ast.parse(path.read_text())
        if name != "__init__" and not (path.stem == "__init__" and len(tree.body) < 2):
            found[name] = tree
    return found


def imported(tree: ast.Module, package: str = "") -> Iterator[tuple[str, list[str]]]:
    """What a module of a package imports, anywhere: modules, with names of theirs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            near = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
            name = ".".join(part for part in (near, node.module) if part)
            yield name, [alias.name for alias in node.names]


@cache
def imports() -> set[tuple[str, str]]:
    """(module, module it imports); what a package's __init__ registers counts as imported by it."""
    modules, found = sources(), set()
    for module, tree in modules.items():
        for name, members in imported(tree, f"graphc.{module}".rpartition(".")[0]):
            if name.split(".")[0] != "graphc":
                continue
            own = name.removeprefix("graphc").removeprefix(".")
            inner = [f"{own}.{member}".removeprefix(".") for member in members]
            found |= {(module, home(x)) for x in [i for i in inner if home(i)] or [own]}
        if any(name == "pkgutil" for name, _ in imported(tree)):
            package = module.removesuffix(".__init__")
            found |= {
                (module, other)
                for other in modules
                if other.removesuffix(".__init__").rpartition(".")[0] == package
            }
    return {(a, b) for a, b in found if b and a != b}


def home(name: str) -> str:
    """The file of a module or package; "" if there is none."""
    return next((x for x in (name, f"{name}.__init__") if x in sources()), "")


def room(module: str) -> str:
    """The entry of ROOMS that a module belongs to."""
    parts = module.split(".")
    inner = ".".join(parts[:2])
    return inner if inner in LEVEL or parts[0] in ("backends", "runtime") else parts[0]


def short(module: str) -> str:
    """A package by its own name."""
    return module.removesuffix(".__init__")


def test_rooms_import_from_those_below():
    for module, other in sorted(imports()):
        above, below = room(module), room(other)
        assert above == below or LEVEL[below] < LEVEL[above], f"{module} imports {other}"


def test_every_module_is_in_a_room():
    assert {room(module) for module in sources()} == set(LEVEL)


def test_no_import_closes_a_circle():
    edges = {(short(a), short(b)) for a, b in imports()}
    assert set(RETURNS) <= edges, "an exception that is needed no more"
    below: dict[str, set[str]] = {}
    for module, other in edges - set(RETURNS):
        below.setdefault(module, set()).add(other)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(below.get(module, ())):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(below):
        visit(module, ())


NAMED = {  # passes that name operators, each for a reason
    "control_flow": "members of a sequence that a loop carries are what SequenceConstruct made",
    "infer_types": "it forwards copies of sequences, whose operators have no bodies",
    "sequences": "operators on sequences have no bodies to read",
    "specialise": "Shape and Size do not depend on contents, before any type is known",
    "integers": "it decides which rules for quantised operators are applied",
}
CREATING = ("op", "emit", "insert", "lookup", "_combined", "_joined")  # take a name to make an op


def names_of_operators(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of operators that a module names outside patterns and other than to make one."""
    operators = {d.name for d in REGISTRY.values() if d.form not in ("core", "region")}
    apart: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            apart.add(node.value)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            pattern = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "P"
            inner = [x for a in node.args for x in ast.walk(a)] if pattern else node.args
            apart.update(inner if pattern or name in CREATING else ())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in apart and node.value in operators:
            yield node.lineno, str(node.value)


def test_passes_ask_for_facts_and_not_for_operators():
    find("Add")  # has all operators registered
    naming = set()
    for module, tree in sources().items():
        if module.startswith("passes.") and not module.startswith("passes.rules.quantised"):
            names = list(names_of_operators(tree))
            naming |= {module.removeprefix("passes.")} if names else set()
            assert not names or module.removeprefix("passes.") in NAMED, f"{module}: {names}"
    assert naming == set(NAMED), "an exception that is needed no more"


def test_no_module_takes_what_is_private_to_another():
    for module, tree in sources().items():
        for name, members in imported(tree):
            private = [m for m in members if m.startswith("_") and not m.startswith("__")]
            assert not (private and name.startswith("graphc")), f"{module}: {name} {private}"


def test_few_annotations_are_any():
    """Counted is every annotation of a parameter, a result or a variable; one that holds `Any`
    anywhere counts as one."""
    annotations = [
        annotation
        for tree in sources().values()
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if annotation is not None
    ]
    vague = sum(
        any(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(annotation))
        for annotation in annotations
    )
    assert vague < 0.03 * len(annotations), f"{vague} of {len(annotations)}"


def test_no_two_modules_share_a_bare_name():
    """Tests put the folders of helpers and of benchmarks on `sys.path`, where the first of two
    modules of one name hides the other."""
    folders = ["benchmarks", "tests", "tests/fuzz"]
    names = [path.stem for folder in folders for path in (ROOT / folder).glob("*.py")]
    tests = [path.stem for path in (ROOT / "tests").rglob("test_*.py")]
    for known in (names, tests):  # pytest takes no two test files of one name
        assert sorted(name for name in set(known) if known.count(name) > 1) == []
