"""What other languages need beside a library: a package for JavaScript, a crate for Rust.

Both stand in the folder of the library, which then is the package. A package.json or Cargo.toml
that graphc has not written is left as it is, and the library is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from graphc.backends.llvm_cpu.image import Image, Interface
from graphc.backends.llvm_cpu.interface_ir import context_bytes
from graphc.backends.llvm_cpu.triples import Platform
from graphc.errors import UnsupportedError
from graphc.ir.alignment import ALIGNMENT
from graphc.ir.dtypes import DType
from graphc.ir.types import TensorType

OURS = "made by graphc"  # what a manifest says that may be written anew

_ARRAYS = {
    "f64": "Float64Array", "f32": "Float32Array", "i64": "BigInt64Array", "u64": "BigUint64Array",
    "i32": "Int32Array", "u32": "Uint32Array", "i16": "Int16Array", "u16": "Uint16Array",
    "i8": "Int8Array",
}  # fmt: skip


def npm_package(path: Path, image: Image, name: str) -> dict[str, str]:
    """The files of a package around a module of WebAssembly, by name. UnsupportedError if the
    folder is another's package."""
    _check(path.with_name("package.json"))
    manifest = {
        "name": _package_name(name), "version": "1.0.0", "description": f"{image.name}, {OURS}",
        "type": "module", "main": "index.js", "types": "index.d.ts",
        "files": [path.name, "index.js", "index.d.ts"],
    }  # fmt: skip
    script = _SCRIPT
    for what, text in {
        "@FILE@": json.dumps(path.name), "@NAME@": name, "@CONTEXT@": str(context_bytes(image)),
        "@ALIGNMENT@": str(ALIGNMENT), "@INPUTS@": _js_tensors(image.inputs),
        "@OUTPUTS@": _js_tensors(image.told), "@TITLE@": _line(image.name),
        "@SIZES@": json.dumps([[s.name, s.lo, s.hi] for s in image.sizes]),
        "@COUNTS@": json.dumps([s.name for s in image.counts]),
    }.items():  # fmt: skip
        script = script.replace(what, text)
    sized = bool(image.sizes or image.counts)
    return {
        "package.json": json.dumps(manifest, indent=2) + "\n",
        "index.js": script,
        "index.d.ts": _TYPES.replace("@TITLE@", _line(image.name)).replace(
            "@SIZES@", "sizes: Record<string, number>, " if sized else ""
        ).replace("@SHAPES@", _SHAPES if sized else ""),
    }  # fmt: skip


def _js_tensors(entries: Interface) -> str:
    rows = []
    for label, type in entries:
        assert isinstance(type, TensorType)
        array = _ARRAYS.get(
            type.dtype.name, "Uint8Array" if type.dtype.size == 1 else "Uint16Array"
        )
        shape = f"[{', '.join(map(str, type.dims))}]" if type.is_static else "null"
        rows.append(
            f"  {{ name: {json.dumps(label)}, type: {json.dumps(type.dtype.name)}, "
            f"array: {array}, shape: {shape}, rank: {type.rank}, bytes: {type.most_bytes} }},"
        )
    return "[\n" + "".join(row + "\n" for row in rows) + "]"


def _package_name(name: str) -> str:
    return name.lower().replace("_", "-").strip("-") or "model"


def _line(text: str) -> str:
    """A text that ends no comment."""
    return "".join(c if c.isprintable() and ord(c) < 128 else "?" for c in text).replace(
        "*/", "* /"
    )


def _check(manifest: Path) -> None:
    """UnsupportedError if a manifest is not graphc's."""
    try:
        is_ours = OURS in manifest.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if not is_ours:
        raise UnsupportedError(
            f"{manifest} is of another package; write the model to a folder of its own"
        )


# ---------------------------------------------------------------- Rust


def crate(path: Path, image: Image, name: str, platform: Platform) -> dict[str, str]:
    """The files of a crate around a static library, by name. UnsupportedError if the folder is
    another's crate. Models of open shape have none."""
    _check(path.with_name("Cargo.toml"))
    if image.sizes or image.counts:
        return {}
    manifest = _CARGO.format(name=_package_name(name), ours=OURS)
    build = _BUILD.format(file=path.name, name=name, libm="true" if platform.has_libc else "false")
    inputs, outputs = (
        _arguments(image.inputs, "input", ""),
        _arguments(image.told, "output", "mut "),
    )
    source = _LIB.format(
        title=_line(image.name), name=name, context=context_bytes(image), alignment=ALIGNMENT,
        arguments="".join(f", {label}: {kind}" for label, kind in (*inputs, *outputs)),
        inputs=", ".join(f"{label}.as_ptr().cast()" for label, _ in inputs),
        outputs=", ".join(f"{label}.as_mut_ptr().cast()" for label, _ in outputs),
        count=len(inputs), told_count=len(outputs), told=_told(image),
    )  # fmt: skip
    return {"Cargo.toml": manifest, "build.rs": build, "src/lib.rs": source}


def _arguments(entries: Interface, label: str, how: str) -> list[tuple[str, str]]:
    """Parameters of the run, and their types."""
    return [
        (f"{label}{n}", f"&{how}[{_rust(type.dtype)}; {type.size}]")
        for n, (_, type) in enumerate(entries)
    ]


def _rust(dtype: DType) -> str:
    """The type of an element; of one that Rust has not, its bits."""
    if dtype.name in _ARRAYS:
        return dtype.name
    return "bool" if dtype.name == "bool" else f"u{8 * dtype.size}"


def _told(image: Image) -> str:
    rows: Sequence[str] = [
        f"/// * `{kind}{n}`: {_line(label)}, {_line(str(type))}"
        for kind, entries in (("input", image.inputs), ("output", image.told))
        for n, (label, type) in enumerate(entries)
    ]
    return "\n    ".join(rows)


_SCRIPT = """/* @TITLE@ as a module of WebAssembly: `await load()` gives a model, and
 * `model.run` runs it. */

export const inputs = @INPUTS@;
export const outputs = @OUTPUTS@;
export const sizes = @SIZES@; /* names of the sizes of a run, with their bounds */
export const counts = @COUNTS@; /* names of the sizes that a run tells */

const ALIGNMENT = @ALIGNMENT@;
const PAGE = 65536;

/** The bytes of the module: from its file in Node.js, else fetched from beside this script. */
async function source() {
  const url = new URL(@FILE@, import.meta.url);
  if (url.protocol !== "file:") return fetch(url).then((answer) => answer.arrayBuffer());
  const { readFile } = await import("node:fs/promises");
  return readFile(url);
}

/** A model; `bytes` are those of the module, where they come from elsewhere. */
export async function load(bytes) {
  const module = await WebAssembly.compile(bytes ?? (await source()));
  return new Model(await WebAssembly.instantiate(module, {}));
}

export class Model {
  #exports;
  #context;
  #end;

  constructor(instance) {
    this.#exports = instance.exports;
    this.#end = instance.exports.__heap_base.value;
    this.#context = this.#allocate(@CONTEXT@);
    instance.exports.@NAME@_place(this.#context);
    const words = sizes.length + counts.length;
    this.sizes = words ? this.#allocate(8 * words) : 0;
    this.inputs = inputs.map((tensor) => this.#allocate(tensor.bytes));
    this.outputs = outputs.map((tensor) => this.#allocate(tensor.bytes));
    this.pointers = [this.inputs, this.outputs].map((places) => {
      const at = this.#allocate(4 * places.length);
      new Uint32Array(this.#memory, at, places.length).set(places);
      return at;
    });
  }

  get #memory() {
    return this.#exports.memory.buffer;
  }

  #allocate(bytes) {
    const start = Math.ceil(this.#end / ALIGNMENT) * ALIGNMENT;
    this.#end = start + bytes;
    const missing = Math.ceil((this.#end - this.#memory.byteLength) / PAGE);
    if (missing > 0) this.#exports.memory.grow(missing);
    return start;
  }

  /**
   * Runs the model on arrays, one for each of `inputs`; those of its outputs are new. A model of
   * open shape takes its sizes first, by name, and writes those that it tells there.
   */
  run(...args) {
    const given = sizes.length + counts.length ? args.shift() : {};
    if (args.length !== inputs.length) throw new TypeError(`expected ${inputs.length} inputs`);
    args.forEach((array, n) => this.#write(array, n));
    this.#writeSizes(given);
    const handles = this.sizes ? [this.#context, this.sizes] : [this.#context];
    const status = this.#exports.@NAME@_run(...handles, ...this.pointers);
    if (status === 1) throw new RangeError(this.#error());
    if (status !== 0) throw new RangeError("a size is out of its bounds");
    this.#readSizes(given);
    return outputs.map((tensor, n) => this.#read(tensor, n));
  }

  #write(array, n) {
    const { array: Kind, name, bytes, shape } = inputs[n];
    if (!(array instanceof Kind)) throw new TypeError(`${name} must be a ${Kind.name}`);
    const fits = shape ? array.byteLength === bytes : array.byteLength <= bytes;
    const least = shape ? "" : "at most ";
    const wanted = `${least}${bytes / Kind.BYTES_PER_ELEMENT}`;
    if (!fits) throw new TypeError(`${name} must have ${wanted} elements`);
    new Kind(this.#memory, this.inputs[n], array.length).set(array);
  }

  #read(tensor, n) {
    const { array: Kind } = tensor;
    const count = tensor.shape ? tensor.bytes / Kind.BYTES_PER_ELEMENT : this.#elements(n);
    return new Kind(this.#memory, this.outputs[n], count).slice();
  }

  #elements(n) {
    return this.shape(n).reduce((product, extent) => product * extent, 1);
  }

  /** The shape of an output, after a run. */
  shape(n) {
    if (outputs[n].shape) return outputs[n].shape;
    const end = this.#end;
    const at = this.#allocate(8 * outputs[n].rank);
    this.#end = end;
    this.#exports[`@NAME@_output_shape_${n}`](this.sizes, at);
    return [...new BigInt64Array(this.#memory, at, outputs[n].rank)].map(Number);
  }

  #writeSizes(given) {
    if (!this.sizes) return;
    const words = new BigInt64Array(this.#memory, this.sizes, sizes.length);
    sizes.forEach(([name], n) => {
      if (!(name in given)) throw new TypeError(`the size ${name} is missing`);
      words[n] = BigInt(given[name]);
    });
  }

  #readSizes(given) {
    const words = new BigInt64Array(this.#memory, this.sizes, sizes.length + counts.length);
    counts.forEach((name, n) => {
      given[name] = Number(words[sizes.length + n]);
    });
  }

  #error() {
    const bytes = new Uint8Array(this.#memory, this.#exports.@NAME@_error(this.#context));
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }
}

"""
_TYPES = """/* @TITLE@ as a module of WebAssembly. */

export type TensorArray =
  | Float64Array | Float32Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array
  | Int16Array | Uint16Array | Int8Array | Uint8Array;

export interface Tensor {
  name: string;
  /** The type of elements; those that JavaScript has not are told by their bits. */
  type: string;
  /** The extents; null if they depend on the sizes of a run. */
  shape: number[] | null;
  rank: number;
  /** How much there can be at most. */
  bytes: number;
}

export const inputs: Tensor[];
export const outputs: Tensor[];
export const sizes: [string, number, number][];
export const counts: string[];

/** A model; `bytes` are those of the module, where they come from elsewhere. */
export function load(bytes?: BufferSource): Promise<Model>;

export class Model {
  constructor(instance: WebAssembly.Instance);
  /** Runs the model on arrays, one for each of `inputs`; those of its outputs are new. */
  run(@SIZES@...inputs: TensorArray[]): TensorArray[];
@SHAPES@}
"""
_SHAPES = """  /** The shape of an output, after a run. */
  shape(output: number): number[];
"""
_CARGO = """# {ours}
[package]
name = "{name}"
version = "1.0.0"
edition = "2021"
build = "build.rs"
links = "{name}"

[lib]
path = "src/lib.rs"
"""
_BUILD = """use std::{{env, fs, path::Path}};

fn main() {{
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap();
    let library = Path::new(&folder).join("{file}");
    let out = env::var("OUT_DIR").unwrap();
    fs::copy(&library, Path::new(&out).join("lib{name}_native.a")).unwrap();
    println!("cargo:rerun-if-changed={{}}", library.display());
    println!("cargo:rustc-link-search=native={{}}", out);
    println!("cargo:rustc-link-lib=static={name}_native");
    if {libm} {{
        println!("cargo:rustc-link-lib=m");
        println!("cargo:rustc-link-lib=pthread");
    }}
}}
"""
_LIB = """//! {title}: a neural network. It needs neither `std` nor an allocator.
#![no_std]

use core::ffi::{{c_char, c_int, c_void, CStr}};

extern "C" {{
    fn {name}_place(memory: *mut c_void) -> *mut c_void;
    fn {name}_run(
        context: *mut c_void,
        inputs: *const *const c_void,
        outputs: *const *mut c_void,
    ) -> c_int;
    fn {name}_error(context: *const c_void) -> *const c_char;
}}

/// Bytes of a `Context`.
pub const CONTEXT_BYTES: usize = {context};

/// Memory of one run at a time; large, so place it in a static or on the heap.
#[repr(C, align({alignment}))]
pub struct Context {{
    memory: [u8; CONTEXT_BYTES],
}}

impl Context {{
    /// Memory for a model.
    pub const fn new() -> Self {{
        Self {{ memory: [0; CONTEXT_BYTES] }}
    }}

    {told}
    ///
    /// The error is a sentence about what inputs hold that the model forbids.
    pub fn run(&mut self{arguments}) -> Result<(), &CStr> {{
        let inputs: [*const c_void; {count}] = [{inputs}];
        let outputs: [*mut c_void; {told_count}] = [{outputs}];
        let memory = self.memory.as_mut_ptr().cast();
        unsafe {{
            let context = {name}_place(memory);
            match {name}_run(context, inputs.as_ptr(), outputs.as_ptr()) {{
                0 => Ok(()),
                _ => Err(CStr::from_ptr({name}_error(context))),
            }}
        }}
    }}
}}

impl Default for Context {{
    fn default() -> Self {{
        Self::new()
    }}
}}
"""
