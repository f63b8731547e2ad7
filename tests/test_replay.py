"""benchmarks/replay.py: the same code twice, and a change that is seen."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def replay(*argv):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "replay.py", *argv], capture_output=True, text=True
    )


def test_what_changed_in_emitted_code(tmp_path):
    folders = tmp_path / "old", tmp_path / "new"
    chosen = ("--models", "digits_cnn", "loop_positions", "--targets", "c-plain", "c-generic")
    for folder in folders:
        assert replay("write", folder, *chosen).returncode == 0
    same = replay("diff", *folders)
    assert same.returncode == 0 and "0 of 9 files differ" in same.stdout
    code = folders[1] / "c-plain" / "digits_cnn" / "code.txt"
    code.write_text(code.read_text() + "int more;\n")
    (folders[1] / "c-generic" / "loop_positions" / "error.txt").unlink()  # it compiles now, say
    changed = replay("diff", *folders, "--lines", "5")
    assert changed.returncode == 1 and "2 of 9 files differ" in changed.stdout
    assert "0 lines removed, 1 added" in changed.stdout and "+int more;" in changed.stdout
    assert "error.txt: only in" in changed.stdout
