"""Products of warp groups, four warps whose first is a multiple of four: wgmma of sm_90a.

    wgmma_TYPE_nN(sums, a, b, across_a, across_b, further_a, further_b)
                              begins d += a b for a warp group, where d is 64 x N, a has 64 rows
                              and b N columns of 8 words in shared memory, whose first words are
                              given, each so many bytes further. `sums` is the first of a
                              thread's N / 2: those of mma_TYPE for fragments 16 x 8 of its warp's
                              16 rows, one after another
    wgmma_tf32_held_nN(sums, a0, a1, a2, a3, b)
    wgmma_TYPE_held_nN(sums, a0, a1, a2, a3, b, across_b, further_b)     (f16, bf16)
                              the same with a in registers: each warp's 16 rows as the fragment of
                              mma_TYPE, which may change once the products have been waited for
    share_copies()            what this thread has written into shared memory, or seen others write,
                              is seen by its products, and by those of others after the next barrier
    begin_products()          a thread's sums may be taken by the products that follow
    commit_products()         ends a batch of products
    wait_products(n)          waits until at most the last n batches of this warp group go on:
                              panels that the others read may be written after a barrier
    make_uniform(to, x)       what the first lane of a warp has, which all have: compilers then know
    take_sums_N(sums)         a thread's N sums, the first of which is given, may be read: after
                              wait_products(0)

Rows of panels are lines of 128 bytes at multiples of 1024, whose chunk c of 16 bytes lies at
c ^ (r % 8) in the r-th line (panels.py). A line holds words along the depth of one position; or, if
`across` is not 0 (f16 and bf16 only), 64 positions of one element of the depth, the next 64
positions lying so many bytes farther on. These are the K-major and the M- or N-major layouts with
128-byte swizzling of PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Iterable

COLUMNS = (32, 64, 128, 256)  # N
_SHAPES = {
    "f16": ("k16.f32.f16.f16", True),
    "bf16": ("k16.f32.bf16.bf16", True),
    "tf32": ("k8.f32.tf32.tf32", True),
    "s8": ("k32.s32.s8.s8", False),
    "u8": ("k32.s32.u8.u8", False),
    "s8_u8": ("k32.s32.s8.u8", False),
    "u8_s8": ("k32.s32.u8.s8", False),
}
ACROSS_TYPES = ("f16", "bf16")
SUMS = (16, 32, 64, 128)  # of a thread
PRODUCTS = {f"wgmma_{t}_n{n}": (t, n) for t in _SHAPES for n in COLUMNS}
HELD = {f"wgmma_{t}_held_n{n}": (t, n) for t in ("tf32", "f16", "bf16") for n in COLUMNS}
TAKES = {f"take_sums_{n}": n for n in SUMS}
WAIT = "wait_products"
UNIFORM = "make_uniform"
SHARE = "share_copies"
ORDERS = (SHARE, "begin_products", "commit_products")
FUNCTIONS = (*ORDERS, UNIFORM, WAIT, *TAKES, *PRODUCTS, *HELD)
TEMPLATES = {WAIT: 0, **dict.fromkeys(PRODUCTS, 3), **dict.fromkeys(HELD, 6)}
"""Functions whose operands from a number on are template arguments."""

_COMMON = """\
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "these kernels are for sm_90a alone; plan them for another architecture (--arch)"
#endif

static __device__ __forceinline__ void share_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void begin_products()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void commit_products()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
static __device__ __forceinline__ void wait_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

[[maybe_unused]] static __device__ __forceinline__ void make_uniform(int32_t &to, int x)
{
    to = __shfl_sync(0xffffffffu, x, 0);
}

// Where the rows of an operand lie: eight lines after eight, 128 bytes each, chunks permuted. How
// far the next positions across are is told if there are more than the 64 of a line.
template <int POSITIONS, int ACROSS>
static __device__ __forceinline__ uint64_t rows_from(const uint32_t &first)
{
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(&first);
    const uint64_t next = (uint64_t)(ACROSS && POSITIONS > 64 ? ACROSS >> 4 : 1) << 16;
    return (place >> 4) + (next | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62);
}
"""
_PRODUCT = """\
template <int ACROSS_A, int ACROSS_B, int FURTHER_A, int FURTHER_B>
static __device__ __forceinline__ void {name}(
    {sum} &sums, const uint32_t &a, const uint32_t &b)
{{
    {sum} *const d = &sums;
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}{types} "
                 "{{{places}}}, "
                 "%{a}, %{b}, {flags};"
                 : {outputs}
                 : "l"(rows_from<64, ACROSS_A>(a) + (FURTHER_A >> 4)),
                   "l"(rows_from<{columns}, ACROSS_B>(b) + (FURTHER_B >> 4)){immediates});
}}
"""
_PRODUCT_OF_HELD = """\
{template}static __device__ __forceinline__ void {name}(
    float &sums, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, const uint32_t &b)
{{
    float *const d = &sums;
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}{types} "
                 "{{{places}}}, "
                 "{{{words}}}, %{b}, 1, 1, 1{across};"
                 : {outputs}
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3),
                   "l"(rows_from<{columns}, {far}>(b){further}){immediate});
}}
"""
_TAKE = """\
[[maybe_unused]] static __device__ __forceinline__ void {name}({sum} &sums)
{{
    {sum} *const d = &sums;
    asm volatile("" : {sums} :: "memory");
}}
"""
_WIDTH = 16  # operands in a line
_BREAK = '"\n                 "'


def warpgroup_text(used: Iterable[str]) -> list[str]:
    """The functions that kernels use."""
    used = set(used)
    products = [name for name in PRODUCTS if name in used]
    held = [name for name in HELD if name in used]
    takes = [name for name in TAKES if name in used]
    kinds = {_SHAPES[PRODUCTS[name][0]][1] for name in products} | {True for _ in held}
    texts = [_take(name, is_float) for name in takes for is_float in sorted(kinds)]
    texts += [*map(_product, products), *map(_product_of_held, held)]
    return [_COMMON, *texts] if products or held else []


def _take(name: str, is_float: bool) -> str:
    return _TAKE.format(name=name, sum=_type(is_float), sums=_sums(TAKES[name], is_float))


def _product(name: str) -> str:
    type, columns = PRODUCTS[name]
    types, is_float = _SHAPES[type]
    count = columns // 2
    flags, immediates = "1" + ", 1, 1" * is_float, ""
    if type in ACROSS_TYPES:
        flags += f", %{count + 2}, %{count + 3}"
        immediates = ',\n                   "n"(ACROSS_A != 0), "n"(ACROSS_B != 0)'
    places = _lines([f"%{n}" for n in range(count)], _BREAK)
    return _PRODUCT.format(
        name=name, sum=_type(is_float), columns=columns, types=types, places=places,
        a=count, b=count + 1, flags=flags, outputs=_sums(count, is_float), immediates=immediates,
    )  # fmt: skip


def _product_of_held(name: str) -> str:
    type, columns = HELD[name]
    count = columns // 2
    moves = type in ACROSS_TYPES
    return _PRODUCT_OF_HELD.format(
        name=name, columns=columns, places=_lines([f"%{n}" for n in range(count)], _BREAK),
        words=", ".join(f"%{count + n}" for n in range(4)), b=count + 4,
        outputs=_sums(count, True), types=_SHAPES[type][0], far="ACROSS" if moves else "0",
        further=" + (FURTHER >> 4)" if moves else "",
        template="template <int ACROSS, int FURTHER>\n" if moves else "",
        across=f", %{count + 5}" if moves else "", immediate=', "n"(ACROSS != 0)' if moves else "",
    )  # fmt: skip


def _type(is_float: bool) -> str:
    return "float" if is_float else "int32_t"


def _sums(count: int, is_float: bool) -> str:
    """Registers that an instruction reads and writes."""
    register = "f" if is_float else "r"
    return _lines([f'"+{register}"(d[{n}])' for n in range(count)], "\n                   ")


def _lines(parts: list[str], separator: str) -> str:
    width = _WIDTH if len(parts[0]) < 8 else _WIDTH // 2
    lines = [", ".join(parts[n : n + width]) for n in range(0, len(parts), width)]
    return f", {separator}".join(lines)
