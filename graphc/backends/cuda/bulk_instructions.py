"""Copies in bulk and what tells that they are there: TMA and mbarriers of sm_90a.

    copy_box_R(to, barrier, from, c0 .. , dims .., strides .., box ..)
                              one thread copies a box of a tensor of R dimensions into lines of 128
                              bytes at a multiple of 1024, swizzled as panels are (panels.py), with
                              zeros outside. `from` names the tensor's first element, c0 .. the
                              first of the box, innermost first; what follows are numbers: extents,
                              strides of all but the first dimension in elements, extents of the box
    share_box_R(..., r)       the same by block r of a cluster of two, to both of them: the same
                              places, and each one's own barrier
    make_barrier(barrier, n)  one thread makes an mbarrier that waits for n arrivals
    fence_barriers()          makes them known to copies; a barrier of the block must follow
    expect_bytes(barrier, n)  one arrival, and that so many bytes are to come
    give_back(barrier)        an arrival of each warp: what it read may be overwritten
    give_back_to_both(barrier)  the same to both blocks of a cluster
    meet_warp()               lanes of a warp see what the others did
    arrive_with_copies(barrier)  an arrival of this thread once its copies so far (copy16) are there
    meet_cluster(n)           a barrier of all threads of the n blocks of a cluster
    load_from_block(place, r, x0, x1)
                              two neighbours, float32, in shared memory of block r of a cluster;
                              `place` is where this block has the first
    await_phase(barrier, n)   waits for the phase of parity n to be over
    take_registers(n)         a warp group has n registers a thread from here on
    leave_registers(n)        the same where it gives registers back

PTX ISA: mbarrier, cp.async.bulk.tensor, setmaxnreg. The map of a tensor that a box is copied from
is a parameter of the kernel, which the launcher has the driver make (tensor_maps.py).
"""

from __future__ import annotations

from collections.abc import Iterable

RANKS = range(2, 6)
CLUSTER = 2  # blocks
SHARED_BOXES = {f"share_box_{rank}": rank for rank in RANKS}
BOXES = {f"copy_box_{rank}": rank for rank in RANKS} | SHARED_BOXES
MAKE, FENCE, EXPECT, BACK, AWAIT, ARRIVE = (
    "make_barrier", "fence_barriers", "expect_bytes", "give_back", "await_phase",
    "arrive_with_copies",
)  # fmt: skip
TAKE, LEAVE, MEET_WARP = "take_registers", "leave_registers", "meet_warp"
BACK_TO_BOTH, MEET, FROM_BLOCK = "give_back_to_both", "meet_cluster", "load_from_block"
PHASES = (MAKE, EXPECT, AWAIT)
FUNCTIONS = (*PHASES, FENCE, BACK, BACK_TO_BOTH, ARRIVE, MEET, MEET_WARP, FROM_BLOCK, TAKE, LEAVE)
TEMPLATES = {TAKE: 0, LEAVE: 0, MEET: 0}

_COMMON = """\
struct __align__(64) TensorMap { unsigned char bytes[128]; };

static __device__ __forceinline__ uint32_t shared_address(const void *place)
{
    return (uint32_t)__cvta_generic_to_shared(place);
}

static __device__ __forceinline__ void make_barrier(uint64_t &barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

static __device__ __forceinline__ void fence_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void expect_bytes(uint64_t &barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(&barrier)), "r"(bytes) : "memory");
}

[[maybe_unused]] static __device__ __forceinline__ void meet_warp()
{
    __syncwarp();
}

static __device__ __forceinline__ void give_back(uint64_t &barrier)
{
    if ((threadIdx.x & 31) == 0) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                     :: "r"(shared_address(&barrier)) : "memory");
    }
}

static __device__ __forceinline__ uint32_t address_in_block(const void *place, int block)
{
    uint32_t other;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(other) : "r"(shared_address(place)), "r"(block));
    return other;
}

static __device__ __forceinline__ void give_back_to_both(uint64_t &barrier)
{
    if ((threadIdx.x & 31) < 2) {
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
                     :: "r"(address_in_block(&barrier, threadIdx.x & 31)) : "memory");
    }
}

static __device__ __forceinline__ void arrive_with_copies(uint64_t &barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 :: "r"(shared_address(&barrier)) : "memory");
}

[[maybe_unused]] static __device__ __forceinline__ void load_from_block(
    const float &place, int block, float &x0, float &x1)
{
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x0), "=f"(x1) : "r"(address_in_block(&place, block)) : "memory");
}

template <int BLOCKS>
static __device__ __forceinline__ void meet_cluster()
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

static __device__ __forceinline__ void await_phase(uint64_t &barrier, int parity)
{
    asm volatile("{\\n"
                 ".reg .pred over;\\n"
                 "AGAIN:\\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\\n"
                 "@over bra DONE;\\n"
                 "bra AGAIN;\\n"
                 "DONE:\\n"
                 "}" :: "r"(shared_address(&barrier)), "r"(parity) : "memory");
}

template <int N>
static __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}

template <int N>
static __device__ __forceinline__ void leave_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}
"""
_BOX = """\
static __device__ __forceinline__ void {name}(
    uint32_t &to, uint64_t &barrier, const TensorMap &map, {params})
{{
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {{{places}}}], [%2];"
                 :: "r"(shared_address(&to)), "l"(&map), "r"(shared_address(&barrier)),
                    {given} : "memory");
}}
"""
_SHARED_BOX = """\
template <int BLOCK>
static __device__ __forceinline__ void {name}(
    uint32_t &to, uint64_t &barrier, const TensorMap &map, {params})
{{
    if (blockIdx.x % 2 == BLOCK) {{
        asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
                     ".mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {{{places}}}], [%2], %{mask};"
                     :: "r"(shared_address(&to)), "l"(&map), "r"(shared_address(&barrier)),
                        {given}, "h"((unsigned short)3) : "memory");
    }}
}}
"""


def bulk_text(used: Iterable[str]) -> list[str]:
    """The functions that kernels use."""
    used = set(used)
    boxes = [name for name in BOXES if name in used]
    return [_COMMON, *map(_box, boxes)] if boxes or used & {*FUNCTIONS} else []


def _box(name: str) -> str:
    rank = BOXES[name]
    text = _SHARED_BOX if name in SHARED_BOXES else _BOX
    return text.format(
        name=name, rank=rank, mask=rank + 3, params=", ".join(f"int c{n}" for n in range(rank)),
        places=", ".join(f"%{n + 3}" for n in range(rank)),
        given=", ".join(f'"r"(c{n})' for n in range(rank)),
    )  # fmt: skip
