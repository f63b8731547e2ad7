// Runs CUDA C on the host: what the printed kernels use of the language, one thread at a time.
//
// Blocks run one after another. The threads of a block are fibres: each runs until it waits at a
// barrier or for its warp, so that between two barriers threads run in one of several orders, and
// code that lacks a barrier computes something else. A kernel that never waits needs no fibres.
//
// Every access to global or shared memory goes through a Cell, which checks bounds, that what is
// read was written, and for shared memory that accesses of different threads to an element, one of
// them a write, have a barrier between them. The first fault is kept and ends the launch.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__

namespace simulator {

struct Dim {
    unsigned x = 0, y = 0, z = 0;
};

}  // namespace simulator

static simulator::Dim gridDim, blockDim, blockIdx, threadIdx;

namespace simulator {

#ifndef SIMULATOR_PROFILES  // else profile.h counts accesses
enum class Kind { global, shared, shared_load };

struct Site {
    void note(Kind, uint64_t, size_t, unsigned) const {}
};

struct Profile {
    static void end_interval() {}
    static void end_block() {}
    static bool is_enough(unsigned) { return false; }
};
#endif

constexpr unsigned WARP = 32;
constexpr unsigned MOST_RANKS = 8;  // blocks of a cluster
constexpr size_t STACK_BYTES = 256 << 10;

struct Fault {};

enum class State { ready, at_barrier, at_warp, at_cluster, polling, done };

// What a thread left for its warp to read. Two places in turn, so that a fast lane does not
// overwrite what a slow one has yet to read.
struct Exchange {
    uint64_t bits[2] = {0, 0};
    bool predicate[2] = {false, false};
    uint32_t words[2][6] = {};
    const uint32_t *held[2][4] = {};
    unsigned turn = 0;
};

// What is known of one element of shared memory.
struct History {
    bool written = false;
    bool read = false, read_by_many = false;
    unsigned writer = 0, write_epoch = 0, write_warp_epoch = 0;
    unsigned reader = 0, read_epoch = 0, read_warp_epoch = 0;
};

constexpr unsigned KIB = 1024;

// A word on its way to shared memory, and the batch it belongs to.
struct Copy {
    uint32_t *place;
    History *history;
    uint32_t word;
    unsigned batch;
};

// A product of a warp group that goes on, and the batch it belongs to.
struct Product {
    std::function<void()> compute;
    unsigned batch;
};

// A fibre is entered once, through `context`, and from then on by jumps: these, unlike a change of
// context, need no system call. It runs one kernel after another.
struct Thread {
    ucontext_t context;
    jmp_buf place;
    std::unique_ptr<char[]> stack;
    State state = State::done;
    unsigned mask = 0;     // lanes waited for
    bool orders = false;  // this wait orders what lanes do to memory
    Exchange exchange;
    std::vector<Copy> copies;
    unsigned batch = 0;  // of the copies that are issued now
    std::vector<Product> products;
    unsigned product_batch = 0;
    bool begun = false;             // products may take this thread's sums
    bool awaits = false;            // mbarriers order what it does
    bool unshared = false;          // it wrote what products cannot see yet,
    unsigned unshared_epoch = 0;    // first in that epoch
};

// A tensor that boxes are copied of: as the launch gives it.
struct TensorMap {
    const unsigned char *data;
    const uint8_t *defined;
    int64_t bytes, element, rank, dims[5], strides[4], box[5];
};

// An mbarrier: arrivals and bytes that its phase lacks, and boxes that are on their way.
struct Phases {
    int64_t arrivals = 0, pending = 0, bytes = 0, phase = 0;
    std::vector<std::function<void()>> coming;
};

// The block at hand, or blocks of a cluster, whose threads are numbered one after another.
struct Block {
    unsigned rank = 0, ranks = 1;  // of the thread at hand; blocks
    std::map<const void *, Phases> phases;
    uint64_t moves = 0;  // of what threads may poll for
    std::vector<Thread> threads;
    std::vector<unsigned> warp_epoch;  // counts what orders the threads of a warp
    unsigned epochs[MOST_RANKS] = {};  // count barriers of each block
    uint64_t serial = 0;               // differs from block to block
    size_t shared = 0;                 // bytes of shared memory that the launch asked for
    bool early = false;                // products are done when they begin, not when waited for
    jmp_buf scheduler;
    std::function<void()> kernel;
    bool fibres = false;

    unsigned &epoch() { return epochs[rank]; }
};

static Block block;
static std::string fault;

static inline unsigned thread_number() { return block.rank * blockDim.x + threadIdx.x; }

[[noreturn]] static void fail(const std::string &what)
{
    if (fault.empty()) {
        fault = what + " (block " + std::to_string(blockIdx.x) + ", thread " +
                std::to_string(threadIdx.x) + ")";
    }
    throw Fault();
}

}  // namespace simulator
