"""The command line for microcontrollers: options of C sources, budgets, checks on the host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import graphc, ok

from graphc.backends.micro_c.boards import ARM

ROOT = Path(__file__).parent.parent
DIGITS = str(ROOT / "models" / "digits_cnn.onnx")
ONE = ["--dim", "N=1", "--target", "c"]

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")


def build(folder: Path, *flags: str) -> str:
    """Builds and runs the test of a folder of sources; what it prints."""
    sources = [str(p) for p in folder.iterdir() if p.suffix in (".c", ".S")]
    command = ["gcc", "-O1", f"-I{folder}", *flags, *sources, "-lm", "-o", str(folder / "test")]
    subprocess.run(command, check=True)
    return subprocess.run([folder / "test"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--weights-as", "incbin", "--io", "arena"],
        ["--weights", "f16", "--no-libm"],
        ["--libm", "--tolerance", "1e-4"],
        ["--opt", "size", "--package", "zephyr"],
    ],
    ids=lambda options: options[0] if options else "plain",
)
def test_sources_pass_their_test(capsys, tmp_path, options):
    folder = tmp_path / "digits"
    ok(capsys, "compile", DIGITS, *ONE, "-o", folder, "--with-test", *options)
    assert "logits: largest error" in build(folder)


def test_budgets(capsys, tmp_path):
    argv = ["compile", DIGITS, *ONE, "-o", tmp_path / "digits"]
    ok(capsys, *argv, "--ram", "64K", "--flash", "1M")
    report = json.loads((tmp_path / "digits" / "report.json").read_text())
    assert report["ram_bytes"] == (
        report["arena_bytes"] + report["stack_bytes_bound"] + report["io_bytes"]
    )
    code, _, err = graphc(capsys, *argv, "--ram", report["ram_bytes"], "--flash", "2K")
    assert code == 2 and "--flash 2 KiB:" in err and "flash by layer" in err and "Conv" in err
    code, _, err = graphc(capsys, *argv, "--ram", str(report["ram_bytes"] - 1))
    assert code == 2 and "RAM by layer" in err and "arena live" in err and "--flash" not in err


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
def test_budgets_of_compiled_code(capsys, tmp_path):
    """With a cross compiler the code's size is that of its objects."""
    argv = ["compile", DIGITS, *ONE, "--cpu", "cortex-m4", "-o", tmp_path / "digits"]
    _, _, err = graphc(capsys, *argv, "--flash", "2K")
    assert "code about" not in err and re.search(r"constants .*, code [\d.]+ KiB: ", err)
    told = inspected(capsys, "--cpu", "cortex-m4", "--mhz", "100")
    assert 1000 < told["code_bytes"] < 20000
    assert f"code {told['code_bytes'] / 1024:.4g} KiB" in err


def inspected(capsys, *options: str) -> dict:
    out = ok(capsys, "inspect", DIGITS, *ONE, "--json", *options)
    return json.loads(out)["programs"][0]["timing"]


def test_time_of_a_chip(capsys):
    """Counted where there are tools, and estimated where not."""
    out = ok(capsys, "inspect", DIGITS, *ONE, "--chip", "stm32l4r5")
    assert "compiled for c (cortex-m4)" in out
    assert "time on a cortex-m4 (stm32l4r5) at 120 MHz" in out and " cycles, " in out


def test_time_follows_the_clock(capsys):
    slow = inspected(capsys, "--cpu", "cortex-m4", "--mhz", "50")
    fast = inspected(capsys, "--chip", "stm32l4r5", "--mhz", "100")
    assert slow["cycles"] <= fast["cycles"]  # which waits for flash, if it was counted
    assert slow["seconds"] == pytest.approx(slow["cycles"] / 50e6, rel=1e-3)
    assert fast["seconds"] == pytest.approx(fast["cycles"] / 100e6, rel=1e-3)
    assert slow["seconds_least"] < slow["seconds"] < slow["seconds_most"]
    assert sum(layer["cycles"] for layer in slow["layers"]) == pytest.approx(slow["cycles"], 1e-3)


def test_times_are_of_fixed_shapes(capsys):
    open_sizes = ["--specialise", "any", "--dim", "N=1..4", "--target", "c", "--chip", "stm32l4r5"]
    code, _, err = graphc(capsys, "inspect", DIGITS, *open_sizes)
    assert code != 0 and "fixed shapes" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mhz", "100"], "--cpu"),
        (["--chip", "stm32l4r5", "--cpu", "cortex-m7"], "is a cortex-m4"),
        (["--cpu", "cortex-m4", "--mhz", "0"], "above 0"),
        (["--chip", "z80"], "stm32l4r5"),
    ],
)
def test_mistakes_about_chips(capsys, options, said):
    code, _, err = graphc(capsys, "inspect", DIGITS, *ONE, *options)
    assert code == 2 and said in err and "Traceback" not in err


@pytest.mark.parametrize(
    "argv",
    [
        ["--ram", "64K"],
        ["-o", "model.so", "--weights", "f16"],
        ["--target", "c", "--emit", "c", "--weights-as", "bin"],
        ["--target", "c", "--board", "mps2-an386"],
    ],
)
def test_options_that_only_sources_have(capsys, argv):
    code, _, err = graphc(capsys, "compile", DIGITS, "--dim", "N=1", *argv)
    assert code == 2 and "goes with --target c" in err


@pytest.mark.parametrize(
    "options", [[], ["--weights", "f16", "--rtol", "0.01"], ["--no-libm", "--cpu", "cortex-m55"]]
)
def test_verify_on_the_host(capsys, options):
    out = ok(capsys, "verify", DIGITS, *ONE, *options)
    assert "passed: c against onnxruntime" in out


def test_verify_options_of_other_targets(capsys):
    code, _, err = graphc(capsys, "verify", DIGITS, "--dim", "N=1", "--board", "mps2-an386")
    assert code == 2 and "--board: goes with --target c" in err


@pytest.mark.skipif(bool(ARM.missing()), reason="no cross compiler or emulator")
def test_verify_on_a_board(capsys):
    out = ok(capsys, "verify", DIGITS, *ONE, "--board", "mps2-an386")
    assert "mps2-an386: arena" in out and "passed: c on mps2-an386" in out


def test_folders_above_are_made(capsys, tmp_path):
    ok(capsys, "compile", DIGITS, *ONE, "-o", tmp_path / "firmware" / "lib" / "digits")
    assert (tmp_path / "firmware" / "lib" / "digits" / "digits_cnn.h").is_file()
    (tmp_path / "file").write_text("")
    code, _, err = graphc(capsys, "compile", DIGITS, *ONE, "-o", tmp_path / "file" / "a")
    assert code == 2 and "file: cannot be written" in err


def test_verify_a_trace(capsys, tmp_path):
    folder, log = tmp_path / "digits", tmp_path / "log.txt"
    ok(capsys, "compile", DIGITS, *ONE, "-o", folder, "--with-test")
    log.write_text("boot\n" + build(folder, "-DDIGITS_CNN_TRACE").replace("trace", "[1] trace"))
    argv = ["verify", DIGITS, *ONE, "--trace", log]
    assert "passed" in ok(capsys, *argv)
    lines = log.read_text().splitlines()
    third = next(n for n, line in enumerate(lines) if "trace 2 " in line)
    words = lines[third].split()
    words[3] = f"{int(words[3], 16) ^ 1:08x}"
    log.write_text("\n".join([*lines[:third], " ".join(words), *lines[third + 1 :]]))
    code, out, _ = graphc(capsys, *argv)
    assert code == 1 and "FAILED: layer 2" in out and "Pool" in out
    assert "input image" in graphc(capsys, *argv, "--seed", "1")[1]
    log.write_text("\n".join(lines[:third]))
    assert "ends before layer 2" in graphc(capsys, *argv)[1]
    log.write_text("nothing")
    assert "no line has the form" in graphc(capsys, *argv)[2]


@pytest.mark.parametrize("text", ["", "64X", "-1", "K"])
def test_sizes_that_cannot_be_read(capsys, text):
    code, _, err = graphc(capsys, "compile", DIGITS, *ONE, "-o", "folder", "--ram", text)
    assert code == 2 and "size such as 64K" in err
