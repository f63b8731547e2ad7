"""External data are read, and only from inside the model's folder."""

import os

import numpy as np
import onnx
import pytest
from onnx_models import run, single

from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx

X = np.ones((3, 4), np.float32)
W = np.arange(12, dtype=np.float32).reshape(3, 4)


def with_location(location, offset=None, length=None):
    made = single("Add", {"x": X, "const_w": W})
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    for key, value in (("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return made


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub" / "w.bin").write_bytes(b"\7" * 5 + W.tobytes() + b"\7")
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    return inside


def save(folder, made):
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize("length", [None, 48])
def test_read_at_an_unaligned_offset(folder, length):
    made = with_location("sub/w.bin", 5, length)
    np.testing.assert_array_equal(run(save(folder, made), X)[0], X + W)
    graph = import_onnx(made, base_dir=folder)
    assert graph.ops[0].attrs["value"].flags.aligned


def test_saved_by_onnx(folder):
    made = single("Add", {"x": X, "const_w": W})
    onnx.save_model(
        made, folder / "m.onnx", save_as_external_data=True, size_threshold=0, location="all.bin"
    )
    np.testing.assert_array_equal(run(folder / "m.onnx", X)[0], X + W)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "location,message",
    [
        ("../secret.bin", "outside the model's folder"),
        ("sub/../../secret.bin", "outside the model's folder"),
        ("/etc/passwd", "outside the model's folder"),
        ("C:\\secret.bin", "outside the model's folder"),
        ("..\\secret.bin", "outside the model's folder"),
        ("sub/w.bin\0", "outside the model's folder"),
        ("missing.bin", "is missing"),
        ("sub", "is missing"),
        ("", "is missing"),
    ],
)
def test_locations_outside_or_missing(folder, location, message):
    with pytest.raises(ModelError, match=f"initializer 'const_w': .*{message}"):
        import_onnx(save(folder, with_location(location)))


def test_links_out_of_the_folder(folder):
    os.symlink(folder.parent / "secret.bin", folder / "link.bin")
    os.symlink(folder.parent, folder / "up")
    os.symlink(folder / "sub" / "w.bin", folder / "fine.bin")
    for location in ("link.bin", "up/secret.bin"):
        with pytest.raises(ModelError, match="by a link"):
            import_onnx(save(folder, with_location(location)))
    np.testing.assert_array_equal(run(save(folder, with_location("fine.bin", 5)), X)[0], X + W)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "offset,length,message",
    [
        (0, 44, "need 48 bytes, its length is 44"),
        (7, None, "needs bytes 7 to 55 of 'sub/w.bin', which has 54"),
        (-1, None, "offset of external data is '-1'"),
        ("1e3", None, "offset of external data is '1e3'"),
        (1 << 70, None, "not a byte count"),
        (0, 1 << 40, "its length is"),
    ],
)
def test_wrong_extents(folder, offset, length, message):
    with pytest.raises(ModelError, match=message):
        import_onnx(save(folder, with_location("sub/w.bin", offset, length)))


def test_bytes_have_no_folder():
    with pytest.raises(ModelError, match="need a base_dir"):
        import_onnx(with_location("sub/w.bin").SerializeToString())
