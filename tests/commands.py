"""Commands run in this process, for tests."""

from __future__ import annotations

from graphc.cli import main


def graphc(capsys, *argv) -> tuple[int, str, str]:
    """Runs a command: exit code, stdout, stderr."""
    code = main(list(map(str, argv)))
    out = capsys.readouterr()
    return code, out.out, out.err


def ok(capsys, *argv) -> str:
    """What a command prints that must succeed."""
    code, out, err = graphc(capsys, *argv)
    assert code == 0, err
    return out


def refused(capsys, *argv, code: int = 2) -> str:
    """The message of a command that must fail with one line and no traceback."""
    found, _, err = graphc(capsys, *argv)
    lines = [line for line in err.splitlines() if not line.startswith("graphc: taking --dim")]
    assert (found, len(lines)) == (code, 1), err
    assert "Traceback" not in err
    return lines[0]
