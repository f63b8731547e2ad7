// Kernels of Hopper's asynchronous units, for tests of the PTX machine.
#include <stdint.h>

struct alignas(64) Map { unsigned char bytes[128]; };

static __device__ __forceinline__ uint32_t place(const void *p)
{ return (uint32_t)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void init(uint64_t *bar, int count)
{ asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(place(bar)), "r"(count) : "memory"); }

static __device__ __forceinline__ void fence_init()
{ asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

static __device__ __forceinline__ void expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(place(bar)), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void arrive(uint64_t *bar)
{ asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(place(bar)) : "memory"); }

static __device__ __forceinline__ void wait(uint64_t *bar, int parity)
{
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(place(bar)), "r"(parity) : "memory");
    } while (!done);
}

static __device__ __forceinline__ void load_2d(void *to, const Map *map, int x, int y, uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(place(to)), "l"(map), "r"(x), "r"(y), "r"(place(bar)) : "memory");
}

static __device__ __forceinline__ void load_3d(
    void *to, const Map *map, int x, int y, int z, uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(place(to)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(place(bar)) : "memory");
}

static __device__ __forceinline__ bool elected()
{
    uint32_t is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(is));
    return is;
}

static __device__ __forceinline__ void proxy_fence()
{ asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

static __device__ __forceinline__ uint64_t rows_from(const void *first)
{ return (place(first) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// A box of a tensor of three dimensions, as it lies in shared memory, then added to.
extern "C" __global__ void boxes(uint32_t *out, int words, int x, int y, int z,
                                 const __grid_constant__ Map from, const __grid_constant__ Map to)
{
    __shared__ alignas(1024) uint32_t tile[2048];
    __shared__ uint64_t bar;
    if (threadIdx.x == 0) {
        init(&bar, 1);
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(&bar, words * 4);
        load_3d(tile, &from, x, y, z, &bar);
    }
    wait(&bar, 0);
    for (int n = threadIdx.x; n < words; n += blockDim.x) {
        out[n] = tile[n];
        tile[n] += 1;
    }
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
                     "[%0, {%1, %2, %3}], [%4];"
                     :: "l"(&to), "r"(x), "r"(y), "r"(z), "r"(place(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Bytes one after another, through shared memory and back.
extern "C" __global__ void bytes(const uint32_t *from, uint32_t *to)
{
    __shared__ alignas(128) uint32_t tile[128];
    __shared__ uint64_t bar;
    if (threadIdx.x == 0) {
        init(&bar, 1);
        proxy_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], 512, [%2];" :: "r"(place(tile)), "l"(from), "r"(place(&bar))
                     : "memory");
        expect(&bar, 512);
    }
    wait(&bar, 0);
    tile[threadIdx.x] *= 3;
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;"
                     :: "l"(to), "r"(place(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

// 128 x 64 sums: a producer warp group, two that multiply, two stages. Slices of 64 halves.
enum { STAGES = 2, ROWS = 128, COLUMNS = 64, SLICE = 64 };
extern "C" __global__ void __launch_bounds__(384) product(
    float *out, int slices, const __grid_constant__ Map a, const __grid_constant__ Map b)
{
    __shared__ alignas(1024) unsigned short rows[STAGES][ROWS * SLICE], columns[STAGES][COLUMNS * SLICE];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int n = 0; n < STAGES; ++n) {
            init(&full[n], 1);
            init(&empty[n], 8);
        }
        fence_init();
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x / 32 == 0 && elected()) {
            for (int n = 0; n < slices; ++n) {
                const int stage = n % STAGES, parity = n / STAGES % 2;
                wait(&empty[stage], parity ^ 1);
                expect(&full[stage], (ROWS + COLUMNS) * SLICE * 2);
                load_2d(rows[stage], &a, n * SLICE, blockIdx.x * ROWS, &full[stage]);
                load_2d(columns[stage], &b, n * SLICE, 0, &full[stage]);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[32];
    for (int n = 0; n < 32; ++n) d[n] = 0;
    for (int n = 0; n < slices; ++n) {
        const int stage = n % STAGES, parity = n / STAGES % 2;
        wait(&full[stage], parity);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < SLICE; k += 16) {
            const uint64_t left = rows_from(&rows[stage][(group - 1) * 64 * SLICE + k]);
            const uint64_t right = rows_from(&columns[stage][k]);
#define FOUR(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3])
            asm volatile(
                "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                "%32, %33, 1, 1, 1, 0, 0;"
                : FOUR(0), FOUR(4), FOUR(8), FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28)
                : "l"(left), "l"(right));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (threadIdx.x % 32 == 0) arrive(&empty[stage]);
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (int n = 0; n < 32; ++n) {
        const int row = (group - 1) * 64 + warp * 16 + lane / 4 + 8 * (n / 2 % 2);
        out[(blockIdx.x * ROWS + row) * COLUMNS + n / 4 * 8 + lane % 4 * 2 + n % 2] = d[n];
    }
}

// Two blocks: the first copies a box to both, the second tells it when it has read it.
extern "C" __global__ void __cluster_dims__(2) both(
    uint32_t *out, const __grid_constant__ Map from)
{
    __shared__ alignas(128) uint32_t tile[128];
    __shared__ uint64_t full, empty;
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        init(&full, 1);
        init(&empty, 2);
        fence_init();
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    for (int n = 0; n < 2; ++n) {
        if (threadIdx.x == 0) {
            expect(&full, 512);
            if (rank == 0) {
                wait(&empty, n % 2 ^ 1);
                asm volatile(
                    "cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                    ".mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                    :: "r"(place(tile)), "l"(&from), "r"(0), "r"(4 * n), "r"(place(&full)),
                       "h"((unsigned short)3) : "memory");
            }
        }
        wait(&full, n % 2);
        out[(rank * 2 + n) * 128 + threadIdx.x] = tile[threadIdx.x] + rank;
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t remote;
            asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(place(&empty)));
            asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
                         :: "r"(remote) : "memory");
        }
    }
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// One warp copies 16 bytes a lane; the mbarrier is told once they are there; another warp reads.
extern "C" __global__ void copies(const uint32_t *given, uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[128];
    __shared__ uint64_t bar;
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        init(&bar, 32);
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"(place(words + 4 * lane)), "l"(given + 4 * lane) : "memory");
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                     :: "r"(place(&bar)) : "memory");
        return;
    }
    wait(&bar, 0);
    for (int n = 0; n < 4; ++n) {
        out[32 * n + lane] = 3 * words[32 * n + 31 - lane];
    }
}
