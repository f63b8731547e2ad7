"""Expressions that compilers tend to warn of compile without a warning, in C and in C++."""

from __future__ import annotations

import pytest
from bundles import STRICT, checked

from graphc.backends.cfamily.helpers import helper_text
from graphc.backends.cfamily.printer import KernelPrinter
from graphc.backends.cfamily.spell import Speller
from graphc.backends.micro_c.model import DIALECT
from graphc.ir.kernel import without_unread
from graphc.ir.text.kernel_parser import parse_kernel

KERNELS = {
    "tests": """kernel @k(in x: f32[4], in h: f16[4], out y: bool[4], out z: bool[4]) {
  for i < 4 {
    let nan: bool = isnan(x[i])
    y[i] = nan
    z[i] = isinf(h[i])
  }
}""",
    "positions": """kernel @k(in x: f32[4], in p: i64[4], out y: f32[4]) {
  for i < 4 {
    let at: i64 = min(max(p[i], 0), 3)
    y[i] = x[at] + x[select(i > 2, at, 0)]
  }
}""",
    "shifts": """kernel @k(in x: u32[4], out y: u32[4], out z: u32[4]) {
  for i < 4 {
    let seven: u32 = 7
    let three: u32 = 3
    y[i] = x[i] + seven >> three
    z[i] = x[i] >> three + seven
  }
}""",
}


@pytest.mark.parametrize("language", [["-std=c99"], ["-x", "c++", "-std=c++17"]])
@pytest.mark.parametrize("name", KERNELS)
def test_expressions(name, language, tmp_path):
    spell = Speller(DIALECT.index)
    text = KernelPrinter(parse_kernel(KERNELS[name]), "k", spell, DIALECT).text()
    includes = "#include <math.h>\n#include <stdint.h>\n"
    exported = text.replace("static void k(", "void k(", 1)
    (tmp_path / "k.c").write_text(includes + helper_text(spell.needed) + exported)
    checked(["gcc", *language, "-O1", *STRICT, "-c", "k.c"], tmp_path)


def test_what_nothing_reads_is_dropped():
    idle = parse_kernel("""kernel @k(in x: f32[4], out y: f32[4]) {
  for i < 4 {
    reg v: f32[]
    let a: f32 = x[i] * 2.0
    let b: f32 = a + v[]
    reg w: f32[]
    w[] = 0.0
    if x[i] > 0.0 {
      w[] = b
    } else {
      y[i] = x[i]
    }
    while x[i] > 1.0 {
      let c: f32 = x[i]
      y[i] = 1.0
    }
  }
}""")
    wanted = parse_kernel("""kernel @k(in x: f32[4], out y: f32[4]) {
  for i < 4 {
    if x[i] > 0.0 {
    } else {
      y[i] = x[i]
    }
    while x[i] > 1.0 {
      y[i] = 1.0
    }
  }
}""")
    assert without_unread(idle.body) == wanted.body
