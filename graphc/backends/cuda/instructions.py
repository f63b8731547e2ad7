"""Instructions of GPUs as functions of CUDA C: what `Intrin` statements of kernels print to.

    copy16(to, from, valid, other)
                              16 bytes from global to shared memory, both aligned, or four times
                              the word `other`. Other threads see them after this one's wait_copies
                              and a barrier
    load_vector(from, x0, ...)
    store_vector(to, x0, ...) 2, 4 or more neighbours in memory, 16 bytes at most, at once; the
                              first lies at a multiple of what all of them take
    commit_copies()           ends a batch of copies
    wait_copies(n)            waits until at most the last n batches of this thread are on their way
    load_matrices(r0, r1, r2, r3, row)
                              four matrices of 8 rows of 16 bytes from shared memory, for a warp:
                              lane 8 m + n names row n of matrix m, and lane 4 g + q gets word q of
                              row g of each
    load_matrices_transposed(r0, r1, r2, r3, row)
                              the same for matrices of 8 x 8 halves: lane 4 g + q gets elements g of
                              rows 2 q and 2 q + 1
    mma_TYPE(d0, d1, d2, d3, a0, a1, a2, a3, b0, b1)
                              d += a b for a warp, where d is 16 x 8, a has 16 rows and b 8 columns
                              of 8 words; a word holds 2 f16 or bf16, 1 tf32, or 4 s8 or u8 (those
                              of mma_s8_u8 are signed in a, those of mma_u8_s8 in b)

    round_tf32(r0, r1, r2, r3)
                              rounds float32s so far that mma_tf32 and wgmma_tf32, which cut them,
                              take the nearest values
    pack_TYPE(word, low, high)  two float32 rounded to f16 or bf16
    trade(a, b)               lanes 2 n and 2 n + 1 trade: the even one's b for the odd one's a
    power_of_two(to, x)       2 ** x to about 22 bits; results below 2 ** -126 are 0
    keep_largest(to, x)       an element becomes the largest of what it was and what any thread
                              gives it

    ASSUME_ALIGNED(x)         the parameter x points to a multiple of 16 bytes

Lane 4 g + q holds words q (a0, b0) and q + 4 (a2, b1) of row g, and of row g + 8 (a1, a3), words of
column g, and d at rows g (d0, d1) and g + 8 (d2, d3), columns 2 q and 2 q + 1: the fragments of PTX
ISA, mma.sync and ldmatrix. Where a GPU has no such instruction, shuffles do the same, slowly.
Products of four warps together are in warpgroup_instructions.py, copies in bulk in
bulk_instructions.py. The simulator defines the
functions anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphc.backends.cuda import bulk_instructions as bulk
from graphc.backends.cuda import warpgroup_instructions as warpgroup
from graphc.backends.cuda.warpgroup_instructions import warpgroup_text

_COPIES = """\
template <typename T>
static __device__ __forceinline__ void copy16(
    uint32_t &to, const T &from, int valid, uint32_t other)
{
#if __CUDA_ARCH__ >= 800
    if (other != 0 && !valid) {
        *(uint4 *)&to = make_uint4(other, other, other, other);
        return;
    }
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(&to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(place), "l"(&from), "r"(valid ? 16 : 0) : "memory");
#else
    *(uint4 *)&to = valid ? *(const uint4 *)&from : make_uint4(other, other, other, other);
#endif
}

[[maybe_unused]] static __device__ __forceinline__ void commit_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N>
static __device__ __forceinline__ void wait_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
#endif
}
"""
_VECTORS = """\
template <typename T, int N>
struct __align__(sizeof(T) * N) Vector {
    T elements[N];
};

template <typename T, typename... R>
static __device__ __forceinline__ void load_vector(const T &from, R &... found)
{
    const Vector<T, sizeof...(R)> all = *(const Vector<T, sizeof...(R)> *)&from;
    int n = 0;
    ((found = all.elements[n++]), ...);
}

template <typename T, typename... V>
static __device__ __forceinline__ void store_vector(T &to, V... values)
{
    *(Vector<T, sizeof...(V)> *)&to = Vector<T, sizeof...(V)>{{(T)values...}};
}
"""
_MATRICES = """\
[[maybe_unused]] static __device__ __forceinline__ void {name}(
    uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, const uint32_t &row)
{{
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(&row);
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(place) : "memory");
#else
    uint32_t *const found[4] = {{&r0, &r1, &r2, &r3}};
    const int lane = threadIdx.x & 31;
    __syncwarp();
    for (int matrix = 0; matrix < 4; ++matrix) {{
{words}
    }}
#endif
}}
"""
_WORDS = {
    "load_matrices": """\
        const uint32_t from = __shfl_sync(0xffffffffu, place, 8 * matrix + (lane >> 2));
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(*found[matrix]) : "r"(from + 4 * (lane & 3)) : "memory");""",
    "load_matrices_transposed": """\
        const int first = 8 * matrix + 2 * (lane & 3), place_in_row = 2 * (lane >> 2);
        const uint32_t above = __shfl_sync(0xffffffffu, place, first) + place_in_row;
        const uint32_t below = __shfl_sync(0xffffffffu, place, first + 1) + place_in_row;
        unsigned short low, high;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(low) : "r"(above) : "memory");
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(high) : "r"(below) : "memory");
        *found[matrix] = low | (uint32_t)high << 16;""",
}
_ROUND = """\
template <typename... W>
static __device__ __forceinline__ void round_tf32(W &... words)
{
    const float infinity = __uint_as_float(0x7f800000u);
    ((words += fabsf(__uint_as_float(words)) < infinity ? 0x1000u : 0u), ...);
}
"""
_PACK = """\
[[maybe_unused]] static __device__ __forceinline__ void {name}(
    uint32_t &word, float low, float high)
{{
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.{type}x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
{plain}#endif
}}
"""
_PACK_PLAINLY = {
    "pack_f16": """\
    unsigned short bits[2];
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits[0]) : "f"(low));
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits[1]) : "f"(high));
    word = bits[0] | (uint32_t)bits[1] << 16;
""",
    "pack_bf16": """\
    const float values[2] = {low, high};
    uint32_t bits[2];
    for (int n = 0; n < 2; ++n) {
        const uint32_t x = __float_as_uint(values[n]);
        bits[n] = values[n] != values[n] ? 0x7fc0u : (x + 0x7fffu + (x >> 16 & 1u)) >> 16;
    }
    word = bits[0] | bits[1] << 16;
""",
}
_POWER = """\
[[maybe_unused]] static __device__ __forceinline__ void power_of_two(float &to, float x)
{
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(to) : "f"(x));
}
"""
_LARGEST = """\
[[maybe_unused]] static __device__ __forceinline__ void keep_largest(int32_t &to, int32_t x)
{
    atomicMax(&to, x);
}
"""
_TRADE = """\
template <typename T>
static __device__ __forceinline__ void trade(T &a, T &b)
{
    const bool odd = threadIdx.x & 1;
    const T found = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
    a = odd ? found : a;
    b = odd ? b : found;
}
"""
_SHUFFLED = """\
template <typename S, typename F>
static __device__ void mma_by_shuffles(S *d, const uint32_t *a, const uint32_t *b, F products)
{
    const int lane = threadIdx.x & 31, column = (lane & 3) * 8;
    for (int word = 0; word < 8; ++word) {
        const int half = word >> 2, step = word & 3;
        const uint32_t above = __shfl_sync(0xffffffffu, a[2 * half], (lane & 28) + step);
        const uint32_t below = __shfl_sync(0xffffffffu, a[2 * half + 1], (lane & 28) + step);
        const uint32_t left = __shfl_sync(0xffffffffu, b[half], column + step);
        const uint32_t right = __shfl_sync(0xffffffffu, b[half], column + 4 + step);
        d[0] += products(above, left);
        d[1] += products(above, right);
        d[2] += products(below, left);
        d[3] += products(below, right);
    }
}
"""
_HALF = """\
[[maybe_unused]] static __device__ __forceinline__ float half_value(uint32_t bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
    return value;
}
"""
_LARGE = """\
    asm volatile("mma.sync.aligned.{shape}.row.col.{types} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, "
                 "{{%8, %9}}, {{%0, %1, %2, %3}};"
                 : "+{r}"(d0), "+{r}"(d1), "+{r}"(d2), "+{r}"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
"""
_TURING = """\
#elif __CUDA_ARCH__ >= 750
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a2), "r"(a3), "r"(b1));
"""
_TURING_BYTES = """\
#elif __CUDA_ARCH__ >= 750
#define STEP(d, e, a, b)                                                                      \\
    asm volatile("mma.sync.aligned.m8n8k16.row.col.{types} {{%0, %1}}, {{%2}}, {{%3}}, "       \\
                 "{{%0, %1}};" : "+r"(d), "+r"(e) : "r"(a), "r"(b))
    STEP(d0, d1, a0, b0);
    STEP(d0, d1, a2, b1);
    STEP(d2, d3, a1, b0);
    STEP(d2, d3, a3, b1);
#undef STEP
"""
_MMA = """\
[[maybe_unused]] static __device__ __forceinline__ void {name}(
    {sum} &d0, {sum} &d1, {sum} &d2, {sum} &d3,
    uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{{
#if __CUDA_ARCH__ >= 800
{large}{small}#else
    {sum} d[4] = {{d0, d1, d2, d3}};
    const uint32_t a[4] = {{a0, a1, a2, a3}}, b[2] = {{b0, b1}};
    mma_by_shuffles(d, a, b, [](uint32_t x, uint32_t y) {{
        {products}
    }});
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
#endif
}}
"""
_BYTE_TYPES = {
    "mma_s8": ("signed char", "signed char"),
    "mma_u8": ("unsigned char", "unsigned char"),
    "mma_s8_u8": ("signed char", "unsigned char"),
    "mma_u8_s8": ("unsigned char", "signed char"),
}
_BYTES = """\
int total = 0;
        for (int shift = 0; shift < 32; shift += 8) {{
            total += (int)({})(x >> shift) * (int)({})(y >> shift);
        }}
        return total;"""
_PRODUCTS = {
    "mma_f16": "return half_value(x) * half_value(y) + half_value(x >> 16) * half_value(y >> 16);",
    "mma_bf16": (
        "const uint32_t high = 0xffff0000u;\n"
        "        return __uint_as_float(x << 16) * __uint_as_float(y << 16) +\n"
        "               __uint_as_float(x & high) * __uint_as_float(y & high);"
    ),
    "mma_tf32": (
        "const uint32_t kept = 0xffffe000u;\n"
        "        return __uint_as_float(x & kept) * __uint_as_float(y & kept);"
    ),
    **{name: _BYTES.format(*types) for name, types in _BYTE_TYPES.items()},
}
_SHAPES = {
    "mma_f16": ("m16n8k16", "f32.f16.f16.f32"),
    "mma_bf16": ("m16n8k16", "f32.bf16.bf16.f32"),
    "mma_tf32": ("m16n8k8", "f32.tf32.tf32.f32"),
    "mma_s8": ("m16n8k32", "s32.s8.s8.s32"),
    "mma_u8": ("m16n8k32", "s32.u8.u8.s32"),
    "mma_s8_u8": ("m16n8k32", "s32.s8.u8.s32"),
    "mma_u8_s8": ("m16n8k32", "s32.u8.s8.s32"),
}
ALIGNED = "ASSUME_ALIGNED"
_ALIGNED = """\
#define ASSUME_ALIGNED(x) x = (decltype(x))__builtin_assume_aligned(x, 16)
"""
VECTORS = ("load_vector", "store_vector")
COPIES = ("copy16", "commit_copies", "wait_copies")
PRODUCTS = tuple(_PRODUCTS)
MATRICES = tuple(_WORDS)
PACKS = tuple(_PACK_PLAINLY)
POWER, LARGEST, TRADE, ROUND = "power_of_two", "keep_largest", "trade", "round_tf32"
SCALARS = (POWER, LARGEST, TRADE, ROUND)
FUNCTIONS = (*COPIES, *MATRICES, *PACKS, *SCALARS, *PRODUCTS, *warpgroup.FUNCTIONS, *bulk.FUNCTIONS)
TEMPLATES = {"wait_copies": 0, **warpgroup.TEMPLATES, **bulk.TEMPLATES}
"""Functions whose operands from a number on are template arguments."""


def instruction_text(used: Iterable[str]) -> str:
    """The functions that kernels use, seen by compilers for GPUs only."""
    used = set(used)
    products = [name for name in PRODUCTS if name in used]
    parts = [_ALIGNED] if ALIGNED in used else []
    parts += [_VECTORS] if used & set(VECTORS) else []
    parts += [_COPIES] if used & set(COPIES) else []
    parts += [_matrices(name) for name in MATRICES if name in used]
    parts += [_ROUND] if ROUND in used else []
    parts += [_pack(name) for name in PACKS if name in used]
    parts += [_POWER] if POWER in used else []
    parts += [_LARGEST] if LARGEST in used else []
    parts += [_TRADE] if TRADE in used else []
    parts += [_SHUFFLED] if products else []
    parts += [_HALF] if "mma_f16" in used else []
    parts += [_product(name) for name in products]
    parts += warpgroup_text(used) + bulk.bulk_text(used)
    return "\n".join(["#ifdef __CUDACC__", *parts, "#endif\n"]) if parts else ""


def _matrices(name: str) -> str:
    trans = ".trans" if name.endswith("transposed") else ""
    return _MATRICES.format(name=name, trans=trans, words=_WORDS[name])


def _pack(name: str) -> str:
    type = name.removeprefix("pack_")
    return _PACK.format(name=name, type=type, plain=_PACK_PLAINLY[name])


def _product(name: str) -> str:
    shape, types = _SHAPES[name]
    whole = name in _BYTE_TYPES
    large = _LARGE.format(shape=shape, types=types, r="r" if whole else "f")
    small = _TURING if name == "mma_f16" else ""
    small = _TURING_BYTES.format(types=types) if whole else small
    sum = "int32_t" if whole else "float"
    return _MMA.format(name=name, sum=sum, large=large, small=small, products=_PRODUCTS[name])
