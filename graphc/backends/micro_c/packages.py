"""The files that ecosystems of firmware expect around a bundle, and where they expect its own.

    zephyr      zephyr/module.yml, CMakeLists.txt and Kconfig: a module (ZEPHYR_EXTRA_MODULES)
    arduino     library.properties, the code in src/, a sketch in examples/
    platformio  library.json, the code in src/
    esp-idf     idf_component.yml and a CMakeLists.txt that registers a component
    cmsis       graphc.NAME.pdsc, the description of a CMSIS pack

Code that an ecosystem compiles whatever it finds lies in src/ there, and the test in extras/.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from xml.sax.saxutils import escape

from graphc.backends.micro_c.model import Model

Files = dict[str, str | bytes]
VERSION = "1.0.0"


def package(model: Model, files: Mapping[str, str | bytes], kind: str) -> Files:
    """A bundle's files as an ecosystem has them, with those that it needs besides."""
    return PACKAGES[kind](model, files)


def _sentence(model: Model) -> str:
    return f"{model.name}: inference of a neural network in C99, made by graphc"


def _zephyr(model: Model, files: Mapping[str, str | bytes]) -> Files:
    sources = "\n".join(f"    ${{CMAKE_CURRENT_LIST_DIR}}/../{s}" for s in model.sources)
    names = {"name": model.name, "macro": model.macro, "sources": sources,
             "sentence": _sentence(model)}  # fmt: skip
    return {
        **files,
        "zephyr/module.yml": ZEPHYR_MODULE.format(**names),
        "zephyr/CMakeLists.txt": ZEPHYR_CMAKE.format(**names),
        "zephyr/Kconfig": ZEPHYR_KCONFIG.format(**names),
    }


ZEPHYR_MODULE = """\
name: {name}
build:
  cmake: zephyr
  kconfig: zephyr/Kconfig
"""
ZEPHYR_CMAKE = """\
if(CONFIG_{macro})
  zephyr_library_named({name})
  zephyr_library_sources(
{sources}
  )
  zephyr_library_include_directories(${{CMAKE_CURRENT_LIST_DIR}}/..)
  zephyr_include_directories(${{CMAKE_CURRENT_LIST_DIR}}/..)
  if(CONFIG_{macro}_STATIC_ARENA)
    zephyr_compile_definitions({macro}_STATIC_ARENA)
  endif()
endif()
"""
ZEPHYR_KCONFIG = """\
config {macro}
    bool "{sentence}"
    help
        Adds the model to the build: include {name}.h and call {name}_run.

config {macro}_STATIC_ARENA
    bool "An arena of its own"
    depends on {macro}
    help
        Declares {name}_run_static, which keeps its working memory itself.
"""


def _arduino(model: Model, files: Mapping[str, str | bytes]) -> Files:
    properties = {
        "name": model.name,
        "version": VERSION,
        "author": "graphc",
        "maintainer": "graphc",
        "sentence": _sentence(model) + ".",
        "paragraph": f"Include {model.name}.h and call {model.name}_run.",
        "category": "Data Processing",
        "url": "https://onnx.ai",
        "architectures": "*",
        "includes": f"{model.name}.h",
    }
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    sketch = SKETCH.format(
        name=model.name, macro=model.macro, buffers=_buffers(model), fields=_fields(model),
        declared=f"\n  {model.name}_sizes sizes;" if model.sizes else "",
        sizes="&sizes, " if model.sizes else "",
    )  # fmt: skip
    return {
        **_in_source_folder(model, files),
        "library.properties": text,
        f"examples/{model.name}_once/{model.name}_once.ino": sketch,
    }


SKETCH = """\
// Runs the model once on inputs of zero, and prints its status and how long it took.
#include <{name}.h>

{buffers}
alignas({macro}_ARENA_ALIGN) static uint8_t arena[{macro}_ARENA_SIZE + 1];

void setup() {{
  Serial.begin(115200);
  {name}_inputs inputs;
  {name}_outputs outputs;{declared}
{fields}
  const unsigned long start = micros();
  const {name}_status status = {name}_run({sizes}&inputs, &outputs, arena);
  const unsigned long taken = micros() - start;
  Serial.print({name}_status_string(status));
  Serial.print(", microseconds: ");
  Serial.println(taken);
}}

void loop() {{
}}
"""


def _buffers(model: Model) -> str:
    return "\n".join(
        f"static {t.c_type} {short}_{t.field}[{max(t.elements, 1)}];"
        for _, short, tensors, _ in model.sides() for t in tensors
    )  # fmt: skip


def _fields(model: Model) -> str:
    lines = [
        f"  {side}.{t.field} = {short}_{t.field};"
        for side, short, tensors, _ in model.sides() for t in tensors
    ]  # fmt: skip
    return "\n".join(lines)


def _platformio(model: Model, files: Mapping[str, str | bytes]) -> Files:
    manifest = {
        "$schema": "https://raw.githubusercontent.com/platformio/platformio-core/develop/"
        "platformio/assets/schema/library.json",
        "name": model.name,
        "version": VERSION,
        "description": _sentence(model),
        "keywords": ["neural network", "inference", "onnx"],
        "frameworks": "*",
        "platforms": "*",
        "headers": f"{model.name}.h",
        "build": {"srcDir": "src", "includeDir": "src"},
        "export": {"exclude": ["extras"]},
    }
    return {
        **_in_source_folder(model, files),
        "library.json": json.dumps(manifest, indent=2) + "\n",
    }


def _esp_idf(model: Model, files: Mapping[str, str | bytes]) -> Files:
    sources = " ".join(f'"{source}"' for source in model.sources)
    return {
        **files,
        "CMakeLists.txt": f'idf_component_register(SRCS {sources} INCLUDE_DIRS ".")\n',
        "idf_component.yml": f'version: "{VERSION}"\ndescription: "{_sentence(model)}"\n',
    }


def _cmsis(model: Model, files: Mapping[str, str | bytes]) -> Files:
    kinds = {"h": "header", "c": "source", "S": "sourceAsm", "bin": "other", "md": "doc"}
    listed = "\n".join(
        f'        <file category="{kinds[file.rpartition(".")[2]]}" name="{escape(file)}"/>'
        for file in [f"{model.name}.h", *model.sources, *_binaries(files), "README.md"]
    )
    names = {"name": model.name, "sentence": escape(_sentence(model)), "version": VERSION}
    return {**files, f"graphc.{model.name}.pdsc": PDSC.format(files=listed, **names)}


PDSC = """\
<?xml version="1.0" encoding="UTF-8"?>
<package schemaVersion="1.7.7" xmlns:xs="http://www.w3.org/2001/XMLSchema-instance"
         xs:noNamespaceSchemaLocation="PACK.xsd">
  <vendor>graphc</vendor>
  <name>{name}</name>
  <description>{sentence}</description>
  <url/>
  <releases>
    <release version="{version}">First release</release>
  </releases>
  <taxonomy>
    <description Cclass="Machine Learning" Cgroup="Model">Neural networks as C</description>
  </taxonomy>
  <components>
    <component Cclass="Machine Learning" Cgroup="Model" Csub="{name}" Cversion="{version}">
      <description>{sentence}</description>
      <files>
{files}
      </files>
    </component>
  </components>
</package>
"""


# ---------------------------------------------------------------- folders


def _in_source_folder(model: Model, files: Mapping[str, str | bytes]) -> Files:
    """The code in src/, the test in extras/, and no CMakeLists.txt."""
    code = {f"{model.name}.h", *model.sources, *_binaries(files)}
    test = f"{model.name}_test.c"
    folders = {**dict.fromkeys(code, "src/"), test: "extras/"}
    return {folders.get(f, "") + f: text for f, text in files.items() if f != "CMakeLists.txt"}


def _binaries(files: Mapping[str, str | bytes]) -> list[str]:
    return [name for name in files if name.endswith(".bin")]


PACKAGES: dict[str, Callable[[Model, Mapping[str, str | bytes]], Files]] = {
    "zephyr": _zephyr,
    "arduino": _arduino,
    "platformio": _platformio,
    "esp-idf": _esp_idf,
    "cmsis": _cmsis,
}
IN_SOURCE_FOLDER = ("arduino", "platformio")
"""Packages whose code lies in src/ and whose test in extras/."""

HOW = {
    "zephyr": "Build with `-DZEPHYR_EXTRA_MODULES=` this folder and `CONFIG_{macro}=y`.",
    "arduino": "Put this folder into `libraries/` of the sketchbook, and open the example.",
    "platformio": "Put this folder into `lib/` of the project.",
    "esp-idf": "Put this folder into `components/` of the project, under the name `{name}`, and "
    "add `REQUIRES {name}` to the component that calls it.",
    "cmsis": "Register the pack with `cpackget add graphc.{name}.pdsc`, then select the component "
    "Machine Learning:Model:{name}.",
}
"""How a package is used, for its README."""
