"""How commands end: with whole files or none, when interrupted, and by an error of our own."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
from commands import DIGITS, graphc, make, ok, refused, save
from onnx import helper

from graphc.cli.output import progress
from graphc.files import atomic
from graphc.progress import tell

pytestmark = pytest.mark.usefixtures("elsewhere")


def limited_files(size: int) -> None:
    """Lets the file system refuse what is larger, as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("name", ["m.so", "m.gcm", "m.gir", "m.ll", "firmware", "m.onnx", "m.npz"])
def test_a_full_disk(name, tmp_path):
    command = {"m.onnx": ["opt"], "m.npz": ["run"], "firmware": ["compile", "--target", "c"]}
    dim = "N=1000" if name == "m.npz" else "N=1"
    argv = [*command.get(name, ["compile"]), DIGITS, "--dim", dim, "-o", tmp_path / name]
    done = subprocess.run(
        [sys.executable, "-B", "-m", "graphc", *map(str, argv)], capture_output=True, text=True,
        preexec_fn=lambda: limited_files(1000),
    )  # fmt: skip  # -B: Python would leave the first bytes of compiled modules to later runs
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_output_that_nobody_takes():
    argv = [sys.executable, "-m", "graphc", "compile", DIGITS, "--dim", "N=1", "--emit", "ir"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "graphc: No space left on device\n")
    closed = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *argv])
    assert closed.returncode == 0


def test_names_that_the_terminal_cannot_show(tmp_path):
    made = make([helper.make_node("Neg", ["x"], ["\u03c0"])], outputs=[("\u03c0", 1, (2, 3))])
    argv = [sys.executable, "-m", "graphc", "run", save(tmp_path / "\u0444.onnx", made)]
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(argv, capture_output=True, env=ascii_only)
    assert done.returncode == 0 and done.stdout.startswith(b"\\u03c0: f32[2,3]")


# ---------------------------------------------------------------- whole files


def test_pipes_and_devices_are_written_to(tmp_path):
    """Not replaced by a file of their name."""
    pipe = tmp_path / "m.npz"
    os.mkfifo(pipe)
    argv = [sys.executable, "-m", "graphc", "run", DIGITS, "--dim", "N=1", "-o", pipe]
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            reader.kill()
        assert done.returncode == 0, done.stderr
        assert reader.communicate()[0].startswith(b"PK")
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_files_are_whole_or_not_there(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("before")
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1
    with atomic(path) as temporary:
        temporary.write_text("after")
    assert path.read_text() == "after" and len(list(tmp_path.iterdir())) == 1


def test_progress_is_for_terminals(capsys, monkeypatch):
    with progress("working"):
        tell("part", 1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("working"):
        tell("part", 1, 2)
    assert "working" not in capsys.readouterr().err  # it was over at once
    monkeypatch.setattr("graphc.cli.output.DELAY", 0)
    with progress("working"):
        tell("part", 1, 2)
    told = capsys.readouterr()
    assert "working: part:  50 %|" in told.err and told.out == ""
    assert re.search(r"working: \d\.\d s\n$", told.err)


def test_progress_by_the_clock(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("graphc.cli.output.DELAY", 0)
    monkeypatch.setattr("graphc.cli.output.EVERY", 0.01)
    with progress("measuring", seconds=0.01):
        time.sleep(0.1)
    assert "measuring: 100 %|" in capsys.readouterr().err


def test_commands_tell_how_far_they_are(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("graphc.cli.output.DELAY", 0)
    code, out, err = graphc(capsys, "compile", DIGITS, "--dim", "N=3", "--json")
    assert code == 0 and json.loads(out)
    phases = re.findall(r"compiling digits_cnn.onnx for cpu: ([a-z ]+):", err)
    assert {"optimising", "making kernels", "preparing kernels"} <= set(phases)


def test_interruption(capsys, tmp_path, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("graphc.frontend.onnx_export.export_onnx", interrupt)
    code, _, err = graphc(capsys, "opt", DIGITS, "--dim", "N=1", "-o", tmp_path / "o.onnx")
    assert (code, err) == (130, "graphc: interrupted\n") and not list(tmp_path.iterdir())


def test_interruption_of_native_code():
    """One call that takes hours, and that Python itself would wait for. The process takes
    interrupts also where its parent ignores them (under nohup)."""
    text = (
        "import hashlib, signal; from graphc.cli.interrupt import interruptible\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with interruptible():\n"
        "    print(flush=True); hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
    )
    argv = [sys.executable, "-c", text]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        try:
            assert running.wait(timeout=60) == 130
        finally:
            running.kill()
        assert running.stderr.read() == b"graphc: interrupted\n"


# ---------------------------------------------------------------- internal errors


def test_internal_errors_leave_a_replay(capsys, tmp_path, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("an invariant\nis broken")

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("graphc.driver.optimise", broken)
        message = refused(capsys, "compile", DIGITS, "--dim", "N=1", "--emit", "kernel", code=70)
        assert "RuntimeError: an invariant is broken" in message
        (folder,) = tmp_path.glob("graphc-crash-*")
        assert message.endswith(f"graphc replay {folder.name}")
        code, _, err = graphc(capsys, "replay", folder)
        assert code == 70 and "Traceback" in err
        os.chdir(tmp_path)
    assert "an invariant" in (folder / "traceback.txt").read_text()
    assert "numpy" in (folder / "versions.txt").read_text()
    recorded = json.loads((folder / "command.json").read_text())
    assert recorded["argv"] == ["compile", "1-digits_cnn.onnx", "--dim", "N=1", "--emit", "kernel"]
    assert "kernel @" in ok(capsys, "replay", folder.name)  # mended: the command runs


def test_replay_of_something_else(capsys, tmp_path):
    assert "command.json" in refused(capsys, "replay", tmp_path)
    (tmp_path / "command.json").write_text("{}")
    assert "command.json" in refused(capsys, "replay", tmp_path)
