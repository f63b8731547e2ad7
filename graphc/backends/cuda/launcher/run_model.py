"""Runs the model in this folder on a GPU.

    python run_NAME.py                             on random inputs; prints a summary of each output
    python run_NAME.py --input x=x.npy -o y.npz    on an array saved by numpy.save
    python run_NAME.py --times 100                 and how long a run takes on the device

Needs numpy, and PyCUDA or cuda-python. From Python: `run_NAME.load().run([x])`; arrays of the
device (CuPy, PyTorch, JAX, ...) go through `run_NAME.adopt` and come back as such.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from graphc_cuda import DriverError, DriverMissing, Model, adopt  # noqa: E402
from graphc_cuda.artifact import load as load_folder  # noqa: E402

__all__ = ["adopt", "load", "main"]


def load(device: int = 0) -> Model:
    """The model, on a GPU."""
    return load_folder(FOLDER, device)


def feeds(model: Model, files: list[str], seed: int) -> list[np.ndarray]:
    """Inputs in order: from files named NAME=FILE.npy, else at random (integers are 0 or 1)."""
    wrong = [text for text in files if "=" not in text]
    if wrong:
        raise ValueError(f"--input is NAME=FILE.npy, found {wrong[0]!r}")
    given = dict(text.rsplit("=", 1) for text in files)
    rng = np.random.default_rng(seed)
    values = []
    for spec in model.inputs:
        if spec.name in given:
            array = read(given.pop(spec.name))
            values.append(array.view(spec.dtype) if array.dtype.kind == "V" else array)
        elif spec.dtype.kind in "iub":
            values.append(rng.integers(0, 2, spec.shape).astype(spec.dtype))
        else:
            values.append(rng.standard_normal(spec.shape).astype(spec.dtype))
    if given:
        raise ValueError(f"there is no input {', '.join(given)}")
    return values


def read(path: str) -> np.ndarray:
    """An array saved by numpy.save; ValueError says what is wrong with the file."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as .npy: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is no .npy file, but an archive of several arrays")
    return array


def results(model: Model, outputs: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name, those whose shapes depend on data cut to what they came to."""
    summaries = {}
    for entry, value in zip(model.plan["outputs"], outputs):
        if "true_shape" in entry:
            sizes, first = (entry["true_shape"][key] for key in ("output", "first"))
            extents = outputs[sizes][first : first + value.ndim]
            value = value[tuple(slice(extent) for extent in extents)]
        summaries[entry["name"]] = value
    return summaries


def save(path: str, arrays: dict[str, np.ndarray]) -> None:
    """As numpy.savez, which cannot take every name."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def main() -> int:
    """Runs once; 1 if there is no GPU to run on, or it failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", metavar="NAME=FILE.npy", action="append", default=[])
    parser.add_argument("-o", "--output", metavar="OUT.npz")
    parser.add_argument("--device", type=int, default=0, help="which GPU (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (default: 0)")
    parser.add_argument("--times", type=int, default=0, metavar="N", help="time N runs")
    args = parser.parse_args()
    try:
        model = load(args.device)
        values = feeds(model, args.input, args.seed)
        outputs = model.run(values)
        if args.times:
            resident = [model.to_device(value) for value in values]
            times = sorted(model.times(resident, args.times))
            median, least = times[len(times) // 2], times[0]
            print(f"{median:.4f} ms, at least {least:.4f} ms, on {model.driver.device}")
    except (DriverMissing, DriverError, OSError, ValueError) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    named = results(model, outputs)
    if args.output:
        save(args.output, named)
    for name, value in named.items():
        print(f"{name}: {value.dtype.name}{list(value.shape)}", *value.reshape(-1)[:4])
    return 0


if __name__ == "__main__":
    sys.exit(main())
