"""What a test needs installed."""

import shutil

import pytest


def needs(*tools):
    """A mark that skips a test where one of these commands is not there."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
