"""CPU targets: what the host is, what a named target is, and that LLVM takes them."""

import pytest

from graphc.backends.llvm_cpu import target as T
from graphc.backends.llvm_cpu.jit import assembly
from graphc.errors import ModelError

x86 = pytest.mark.skipif(T.host_target().arch != "x86_64", reason="names x86 instruction sets")

ADD = """
define void @f(ptr %a) {
  %x = load <16 x float>, ptr %a, align 4
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %a, align 4
  ret void
}
"""


def test_host():
    host = T.host_target()
    assert host.runs_here
    assert host.vector_bits in (128, 256, 512) and host.vector_registers in (16, 32)
    assert host.lanes(4) * 32 == host.vector_bits
    assert host.l2_bytes > 0


@x86
@pytest.mark.parametrize("name, register", [("sse", "xmm"), ("avx2", "ymm"), ("avx512", "zmm")])
def test_named_target_uses_its_registers(name, register):
    target = T.named_target(name)
    code = assembly(ADD, target)
    assert f"%{register}" in code
    wider = {"sse": "ymm", "avx2": "zmm", "avx512": "none"}[name]
    assert wider not in code


def test_scalar_target():
    target = T.named_target("scalar")
    assert target.lanes(4) == target.lanes(1) == 1
    assert target.runs_here


def test_unknown_name():
    with pytest.raises(ModelError, match="unknown CPU target 'z80'"):
        T.named_target("z80")


@x86
def test_keys_differ():
    names = ("host", "sse", "avx2", "avx512")
    assert len({T.named_target(n).key for n in names}) == len(names)


def test_cache_size_from_sysfs(tmp_path):
    for number, (level, kind, size) in enumerate(
        [
            ("1", "Data", "48K"),
            ("1", "Instruction", "32K"),
            ("2", "Unified", "2M"),
            ("3", "?", "1G"),
        ]
    ):
        entry = tmp_path / f"index{number}"
        entry.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (entry / name).write_text(text + "\n")
    assert T._l2_bytes(tmp_path) == 2 << 20
    assert T._l2_bytes(tmp_path / "missing") == T.L2_BYTES


@pytest.mark.parametrize(
    "text, quota", [("150000 100000", 2), ("max 100000", 1 << 16), ("", 1 << 16)]
)
def test_cgroup_quota(tmp_path, text, quota):
    path = tmp_path / "cpu.max"
    path.write_text(text)
    assert T._cgroup_quota(path) == quota


def test_default_threads():
    assert T.default_threads() >= 1
