"""graphc quantise: a float model in 8 bits, as standard QDQ ONNX."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.options import add_model, command, examples, filename, positive, reader
from graphc.cli.output import progress
from graphc.errors import ModelError
from graphc.finite import finite
from graphc.targets.micro_c import CPUS, size

if TYPE_CHECKING:
    from graphc.quantisation.quantiser import Quantised

METHODS = ("mse", "minmax", "percentile", "entropy")
TYPES = ("int8", "uint8", "int16")
EMBEDDINGS = ("float", "int8")
SCALES = ("channel", "tensor")

SUMMARY = """\
Quantises a float model after training: to 8 bits, as standard QDQ ONNX, which ONNX Runtime runs as
well. The model is run on samples; the ranges of its values give scales and zero points.

DATA is a .npz file, as numpy.savez writes it, or a folder of such files, which are read one at a
time. It holds an array for each input of the model, by its name; first axes count samples. 16 to
128 samples that are like those of use do; labels are not needed:

  numpy.savez("calib.npz", x=images)      # x is the model's input

Convolutions and matrix products with constant weights become integer, with a scale for each output
channel, and so do sums, pools, moves and activations between them. An LSTM becomes ONNX Runtime's
DynamicQuantizeLSTM; weights of GRU and RNN are stored in 8 bits. What stands between matrix
products (softmax, normalisations, residual sums) stays float. With --integers everything that has
an integer form becomes integer, recurrent layers included, and inputs and outputs are int8: that is
for microcontrollers.

The table shows, for each layer, how far its result is from the float model's: SQNR is the ratio of
signal to quantisation noise in dB (20 dB: an error of 10 %; 40 dB: 1 %), all layers before it
included. A layer that loses much can be left in float with --float."""

EPILOG = examples(
    ("graphc quantise model.onnx --data calib.npz -o q.onnx", "int8, the usual way"),
    ("graphc quantise model.onnx --data calib.npz --integers -o q.onnx",
     "integers from input to output, for graphc compile --target c"),
    ("graphc quantise model.onnx --data calib.npz --calibration minmax --samples 32 -o q.onnx",
     "ranges that hold everything seen in 32 samples"),
    ("graphc quantise model.onnx --data calib.npz --float fc1 -o q.onnx", "layer fc1 in float"),
    ("graphc quantise model.onnx --data calib.npz --keep-accuracy 0.99 -o q.onnx",
     "layers that cost accuracy in float, until 99 % of answers are the float model's"),
    ("graphc quantise model.onnx --data calib.npz --keep-accuracy 0.99 "
     "--mixture int4,int8,float16,float -o q.onnx", "each layer as narrow as that allows"),
    ("graphc quantise model.onnx --data calib.npz --ram 64K --flash 256K --cpu cortex-m4 -o q.onnx",
     "what fits a microcontroller, as accurate as it can be"),
)  # fmt: skip


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "quantise", run, SUMMARY, EPILOG)
    add_model(parser)
    add = parser.add_argument
    add("--data", metavar="DATA", required=True, help="the samples: a .npz file, or a folder")
    add("--samples", metavar="N", type=positive, help="take so many at most (default: all)")
    add("--calibration", choices=METHODS, default="mse",
        help="how ranges are chosen: least mean square of the error, all that was seen, 99.999 %% "
        "of it, or least relative entropy (default: %(default)s)")  # fmt: skip
    add("--activations", choices=TYPES, default="int8",
        help="the type of what layers read (default: %(default)s)")  # fmt: skip
    add("--weights", choices=("int8", "int4", "float16"), default="int8",
        help="int4: weights of matrix products in 4 bits, all else stays float; for models bound "
        "by the bytes of their weights. float16: all weights in 16 bits, computed with in float32; "
        "half the file, hardly any loss (default: %(default)s)")  # fmt: skip
    add("--embeddings", choices=EMBEDDINGS, default="float",
        help="int8: tables of embeddings in 8 bits, with a scale for each row, a quarter of their "
        "bytes (default: %(default)s)")  # fmt: skip
    add("--scales", choices=SCALES, default="channel",
        help="of int8 weights of matrix products: one for each output channel, or one for all, "
        "which saves 4 bytes a channel, and is less accurate (default: %(default)s)")  # fmt: skip
    add("--no-equalise", action="store_true",
        help="do not scale channels between layers (default: where that helps)")  # fmt: skip
    add("--integers", action="store_true",
        help="integers wherever there is an integer form, and as inputs and outputs")  # fmt: skip
    add("--float", metavar="LAYER", action="append", default=[],
        help="leave this layer float; repeatable")  # fmt: skip
    add("--every-layer", action="store_true",
        help="quantise output layers of at most 1 %% of the model too (default: they stay float "
        "where that brings the outputs nearer to the float model's by 0.5 dB)")  # fmt: skip
    add("--keep-accuracy", metavar="SHARE", type=_share,
        help="leave so many layers float that this share of the float model's accuracy is kept: of "
        "its answers, or with --labels of its right ones (0.99, for instance)")  # fmt: skip
    add("--mixture", metavar="LEVELS", type=_levels, default=(),
        help="the precisions that layers may have with --keep-accuracy, such as "
        "int8,int16,float16,float: the cheapest that keep the share are searched for (default: "
        "int8,float)")  # fmt: skip
    add("--labels", metavar="Y.npy", help="the class of each row of the first output")
    add("--ram", metavar="64K", type=reader(size),
        help="fit into this much RAM as C for --cpu: arena, stack, inputs and outputs (implies "
        "--integers); where there is room, what brings most noise stays float")  # fmt: skip
    add("--flash", metavar="256K", type=reader(size), help="and into this much flash")
    add("--cpu", choices=CPUS, default="cortex-m4", help="(default: %(default)s)")
    add("--threads", metavar="N", type=positive, default=None, help="CPU threads (default: all)")
    add("--json", action="store_true", help="print the report as JSON")
    add("-o", "--output", metavar="OUT.onnx", type=filename, required=True,
        help="the ONNX file to write")  # fmt: skip


def _levels(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(part.strip() for part in text.split(","))


def _share(text: str) -> float:
    """A number between 0 and 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, found {text!r}")
    return number


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.analysis.text import nbytes
    from graphc.cli.models import load_npy, open_model
    from graphc.files import check_folder
    from graphc.quantisation.quantiser import quantise

    output = Path(args.output)
    if output.suffix != ".onnx":
        raise ModelError(f"-o {output}: expected a name ending in .onnx")
    check_folder(output)
    model = open_model(args)
    with contextlib.closing(_Phases()) as phases:
        quantised = quantise(
            model.graph,
            args.data,
            calibration=args.calibration,
            activations=args.activations,
            weights=args.weights,
            whole=args.integers,
            samples=args.samples,
            left_out=args.float,
            every_layer=args.every_layer,
            keep_accuracy=args.keep_accuracy,
            mixture=args.mixture,
            equalise=not args.no_equalise,
            embeddings=args.embeddings,
            scales=args.scales,
            ram=args.ram,
            flash=args.flash,
            cpu=args.cpu,
            labels=None if args.labels is None else load_npy(Path(args.labels)),
            threads=args.threads,
            progress=phases.begin,
            **model.pins(),
        )
        phases.begin(f"writing {output}")
        quantised.save(output)
    if args.json:
        print(json.dumps(finite(_report(quantised, output)), indent=1))
        return 0
    _tell(quantised)
    before, after = model.path.stat().st_size, output.stat().st_size
    print(f"wrote {output} ({nbytes(after)}; {model.path.name} has {nbytes(before)})")
    return 0


def _tell(quantised: Quantised) -> None:
    from graphc.analysis.text import nbytes, table

    rows = [("layer", "operator", "weights", "reads", "scale", "SQNR")]
    for layer in quantised.layers:
        rows.append(
            (
                _shortened(layer.name),
                layer.operator,
                f"{layer.weight_bits} bits",
                f"{layer.activation_bits} bits",
                f"{layer.scale:.4g}",
                _decibels(layer.sqnr),
            )
        )
    print(table(rows, left=2) if quantised.layers else "no layer is quantised")
    for name, ratio in quantised.outputs.items():
        print(f"output {name}: SQNR {_decibels(ratio)}")
    accuracy = quantised.accuracy
    if accuracy.right is not None and accuracy.float_right is not None:
        shares = (
            f"{100 * accuracy.right:.2f} %, of the float model {100 * accuracy.float_right:.2f} %"
        )
        print(f"accuracy {shares}")
    if quantised.left_out:
        is_roomy = quantised.needs is not None and not quantised.layers
        why = " (there is room for all of them)" if is_roomy else ""
        print(f"left float: {', '.join(map(_shortened, quantised.left_out))}{why}")
    if quantised.needs is not None:
        needs = quantised.needs
        how = "" if needs.compiled else " (code estimated: there is no compiler for the processor)"
        print(f"takes {nbytes(needs.ram)} of RAM and {nbytes(needs.flash)} of flash{how}")
    print(
        f"largest element stays where it was in {100 * quantised.agreement:.2f} % of rows; "
        f"calibrated on {quantised.samples} samples"
    )


def _report(quantised: Quantised, output: Path) -> dict[str, Any]:
    return {
        "output": str(output),
        "bytes": output.stat().st_size,
        "samples": quantised.samples,
        "agreement": quantised.agreement,
        "accuracy": quantised.accuracy.right,
        "float_accuracy": quantised.accuracy.float_right,
        "left_float": quantised.left_out,
        "needs": None if quantised.needs is None else vars(quantised.needs),
        "outputs": quantised.outputs,
        "layers": [vars(layer) for layer in quantised.layers],
    }


def _decibels(ratio: float) -> str:
    return f"{ratio:.1f} dB" if math.isfinite(ratio) else "exact"


def _shortened(name: str, most: int = 48) -> str:
    return name if len(name) <= most else f"...{name[3 - most :]}"


class _Phases:
    """Shows what is being done, one phase after the other."""

    def __init__(self) -> None:
        self.shown = contextlib.ExitStack()

    def begin(self, what: str) -> None:
        """What goes on from now."""
        self.close()
        self.shown.enter_context(progress(what))

    def close(self) -> None:
        """The last one is over."""
        self.shown.close()
