"""State and training in a bundle: NAME_state, and NAME_train_init and NAME_train_step.

The state is a structure of the caller's, in RAM: the weights that are trained, and what the
optimiser keeps for them. NAME_run reads it, and a step changes it in place. A step uses the same
arena as NAME_run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphc.backends.cfamily.names import comment
from graphc.backends.micro_c import kept_state
from graphc.backends.micro_c.entry import body
from graphc.backends.micro_c.model import Model, Tensor
from graphc.backends.micro_c.steps import constant_text
from graphc.ir.program import Step, walk

STRUCTURE = """\
/* What lasts from one call to the next: weights that are trained, and what the optimiser keeps for
 * each. {name}_train_init fills it; its bytes may be saved, and loaded again. */
typedef struct {{
{fields}
}} {name}_state;

"""
DECLARATIONS = """
/* Has the state start from the weights of the model. It must not be null. */
void {name}_train_init({name}_state *state);

/* One step of training: runs the model on the inputs, compares the result with `target`, which is
 * {target}, stores the loss before the update at `loss`, and moves the weights in `state`
 * by `rate`. The arena is that of {name}_run, which may use it before and after.
 * If the status is not {macro}_OK, the state is as it was. */
{signature};
"""
DEFINES = """\
/* The first layers are those of {name}_run, those from here on of {name}_train_step. */
#define {macro}_RUN_LAYERS {layers}
/* Bytes of the state, and its alignment. */
#define {macro}_STATE_SIZE {size}
#define {macro}_STATE_ALIGN {alignment}
"""
INIT = """
void {name}_train_init({name}_state *state)
{{
{lines}
}}
"""


def structure(model: Model) -> str:
    """The type of the state, in NAME.h; empty if there is none."""
    if not model.state:
        return ""
    notes = {} if model.training is None else model.training.notes
    text = kept_state.STRUCTURE if model.training is None else STRUCTURE
    fields = "\n".join(
        f"    {t.c_type} {t.field}[{max(t.elements, 1)}]; "
        + comment(", ".join([f"{t.name}: {t.shape_text}", f"{t.nbytes} bytes", *_note(notes, t)]))
        for t in model.state
    )
    return text.format(name=model.name, fields=fields)


def _note(notes: Mapping[str, str], tensor: Tensor) -> list[str]:
    """What else there is to say of a part of the state."""
    return [notes[tensor.name]] if tensor.name in notes else []


def run_layers(model: Model) -> int:
    """How many layers are those of NAME_run; the others are those of a training step."""
    assert model.training is not None
    steps = model.program.steps[: model.training.steps]
    return sum(isinstance(step, Step) for step in walk(steps))


def defines(model: Model) -> str:
    """The macros of the state, in NAME.h."""
    if not model.state:
        return ""
    text = kept_state.DEFINES if model.training is None else DEFINES
    return text.format(
        name=model.name, macro=model.macro,
        layers=0 if model.training is None else run_layers(model),
        size=sum(t.nbytes for t in model.state),
        alignment=max(t.type.dtype.size for t in model.state),
    )  # fmt: skip


def declarations(model: Model) -> str:
    """The functions that train, in NAME.h."""
    target = model.target
    if target is None:
        return ""
    return DECLARATIONS.format(
        name=model.name, macro=model.macro, signature=_signature(model, target),
        target=f"{target.shape_text}, {target.nbytes} bytes",
    )  # fmt: skip


def _signature(model: Model, target: Tensor) -> str:
    start = f"{model.name}_status {model.name}_train_step("
    lines = [
        f"const {model.name}_inputs *inputs, const {target.c_type} *target,",
        f"float rate, float *loss, {model.name}_state *state, void *arena)",
    ]
    return start + f"\n{' ' * len(start)}".join(lines)


def functions(model: Model) -> str:
    """The functions that train, in NAME.c."""
    if model.state and model.training is None:
        return kept_state.reset(model) + "\n"
    if model.training is None or model.target is None:
        return ""
    initial = [model.training.initial.get(n) for n in range(len(model.state))]
    lines = [_started(model, t, number) for t, number in zip(model.state, initial)]
    init = INIT.format(name=model.name, lines="\n".join(lines))
    inside = [*body(stepping(model)), f"    return {model.macro}_OK;"]
    step = [_signature(model, model.target), "{", *inside, "}"]
    return init + "\n" + "\n".join(step) + "\n"


def _started(model: Model, tensor: Tensor, number: int | None) -> str:
    """Fills a part of the state."""
    place = f"state->{tensor.field}"
    if number is None:
        return f"    memset({place}, 0, {tensor.nbytes}u);"
    start = constant_text(model, model.constants[number], 0)
    return f"    memcpy({place}, {start}, {tensor.nbytes}u);"


def stepping(model: Model) -> Model:
    """The training step as a model of its own: what its body is printed from."""
    training, target, loss = model.training, model.target, model.loss
    assert training is not None and target is not None and loss is not None
    *given, rate = range(len(model.program.inputs))
    places = {("input", given[-1]): "target", ("input", rate): "&rate",
              ("output", training.outputs): "loss"}  # fmt: skip
    return replace(
        model, inputs=[*model.inputs, target], outputs=[loss], places=places,
        part=(training.steps, None), arguments=("inputs", "target", "loss"),
    )  # fmt: skip
