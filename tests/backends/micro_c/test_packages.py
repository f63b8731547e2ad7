"""Packages have the files that each ecosystem asks for; their sources compile where they lie."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from bundles import STRICT, checked, float_model, micro_program, reference
from onnx import helper

from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c.packages import HOW, PACKAGES
from graphc.targets import micro_c as micro_c_target

X = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)
MODEL = float_model(
    helper.make_node("MatMul", ["x", "w"], ["y"], name="a<b>&c"), X,
    {"w": np.random.default_rng(1).standard_normal((40, 6)).astype(np.float32)},
)  # fmt: skip


def written(kind, folder, form="c"):
    samples = ([X], reference(MODEL, [X]))
    chosen = BundleOptions("net", samples=samples, weights_as=form, package=kind)
    return write_bundle(micro_program(MODEL), folder, chosen)


def test_the_command_line_knows_them():
    assert tuple(PACKAGES) == micro_c_target.PACKAGES == tuple(HOW)


@pytest.mark.parametrize("form", ["c", "incbin"])
@pytest.mark.parametrize("kind", PACKAGES)
def test_the_command_of_the_readme_builds_and_runs(kind, form, tmp_path):
    files = written(kind, tmp_path, form)
    (command,) = re.findall(r"^    (cc .*)$", files["README.md"], re.M)
    build, run = command.split(" && ")
    if form == "incbin":
        build += " -Isrc -I."
    checked([*build.replace("cc", "gcc", 1).split(), "-std=c99", *STRICT], tmp_path)
    assert "largest error" in checked([run], tmp_path)


def test_zephyr(tmp_path):
    files = written("zephyr", tmp_path)
    module = files["zephyr/module.yml"]
    assert "  cmake: zephyr\n" in module and "  kconfig: zephyr/Kconfig\n" in module
    assert re.search(r"^config NET\n    bool ", files["zephyr/Kconfig"], re.M)
    assert "if(CONFIG_NET)" in files["zephyr/CMakeLists.txt"]


def test_arduino(tmp_path):
    files = written("arduino", tmp_path)
    lines = files["library.properties"].splitlines()
    found = dict(line.split("=", 1) for line in lines)
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category"}
    assert required | {"url", "architectures"} <= found.keys()
    assert re.fullmatch(r"[A-Za-z0-9][\w .-]*", found["name"])
    assert "src/net.c" in files and "net.c" not in files and "CMakeLists.txt" not in files
    assert "extras/net_test.c" in files
    sketch = tmp_path / "examples" / "net_once" / "net_once.ino"
    (tmp_path / "Arduino.h").write_text(SERIAL)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Isrc", "-I.", "-include"]
    checked([*command, "Arduino.h", "-x", "c++", "-c", str(sketch), "-o", "sketch.o"], tmp_path)


SERIAL = """
unsigned long micros();
struct Port { void begin(long); void print(const char *); void println(unsigned long); };
extern Port Serial;
"""


def test_platformio(tmp_path):
    manifest = json.loads(written("platformio", tmp_path)["library.json"])
    assert {"name", "version", "description", "build"} <= manifest.keys()
    assert (tmp_path / manifest["build"]["srcDir"] / manifest["headers"]).is_file()


def test_cmsis(tmp_path):
    root = ElementTree.fromstring(written("cmsis", tmp_path, "incbin")["graphc.net.pdsc"])
    assert [child.tag for child in root] == [
        "vendor", "name", "description", "url", "releases", "taxonomy", "components",
    ]  # fmt: skip
    component = root.find("components/component")
    assert {"Cclass", "Cgroup", "Cversion"} <= component.attrib.keys()
    listed = {file.get("name"): file.get("category") for file in component.iter("file")}
    assert listed["net.h"] == "header" and listed["net_weights.S"] == "sourceAsm"
    assert all((tmp_path / name).is_file() for name in listed)


PROJECTS = {  # what the build system of an ecosystem defines, as far as the files use it
    "esp-idf": """
function(idf_component_register)
  cmake_parse_arguments(A "" "" "SRCS;INCLUDE_DIRS" ${ARGN})
  add_library(part STATIC ${A_SRCS})
  target_include_directories(part PUBLIC ${A_INCLUDE_DIRS})
endfunction()
add_subdirectory(package)
""",
    "zephyr": """
set(CONFIG_NET y)
set(CONFIG_NET_STATIC_ARENA y)
macro(zephyr_library_named name)
  add_library(${name} STATIC)
  set(current ${name})
endmacro()
macro(zephyr_library_sources)
  target_sources(${current} PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_include_directories)
  target_include_directories(${current} PRIVATE ${ARGN})
endmacro()
macro(zephyr_include_directories)
  include_directories(${ARGN})
endmacro()
macro(zephyr_compile_definitions)
  add_compile_definitions(${ARGN})
endmacro()
add_subdirectory(package/zephyr)
""",
    None: "add_subdirectory(package)\n",
}


@pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
@pytest.mark.parametrize("form", ["c", "incbin"])
@pytest.mark.parametrize("kind", PROJECTS)
def test_cmake_builds_it(kind, form, tmp_path):
    written(kind, tmp_path / "package", form)
    start = "cmake_minimum_required(VERSION 3.13)\nproject(firmware C ASM)\n"
    (tmp_path / "CMakeLists.txt").write_text(start + PROJECTS[kind])
    checked(["cmake", "-S", ".", "-B", "build"], tmp_path)
    checked(["cmake", "--build", "build"], tmp_path)
    assert list((tmp_path / "build").rglob("*.a"))
