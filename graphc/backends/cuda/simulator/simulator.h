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
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)

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
constexpr size_t STACK_BYTES = 256 << 10;

struct Fault {};

enum class State { ready, at_barrier, at_warp, done };

// What a thread left for its warp to read. Two places in turn, so that a fast lane does not
// overwrite what a slow one has yet to read.
struct Exchange {
    uint64_t bits[2] = {0, 0};
    bool predicate[2] = {false, false};
    uint32_t words[2][6] = {};
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
    bool unshared = false;          // it wrote what products cannot see yet,
    unsigned unshared_epoch = 0;    // first in that epoch
};

struct Block {
    std::vector<Thread> threads;
    std::vector<unsigned> warp_epoch;  // counts what orders the threads of a warp
    unsigned epoch = 0;                // counts barriers
    uint64_t serial = 0;               // differs from block to block
    size_t shared = 0;                 // bytes of shared memory that the launch asked for
    bool early = false;                // products are done when they begin, not when waited for
    jmp_buf scheduler;
    std::function<void()> kernel;
    bool fibres = false;
};

static Block block;
static std::string fault;

static inline unsigned thread_number() { return threadIdx.x; }

[[noreturn]] static void fail(const std::string &what)
{
    if (fault.empty()) {
        fault = what + " (block " + std::to_string(blockIdx.x) + ", thread " +
                std::to_string(thread_number()) + ")";
    }
    throw Fault();
}

// ------------------------------------------------------------------ memory

static void note_unshared();

// A global or shared array: bounds, and per element either a byte that says whether it was written
// (null: it is an input) or a history.
struct Array {
    const char *name;
    int64_t count;
    uint8_t *defined;
    History *history;
    bool on_kib = false;  // starts at a whole KiB of shared memory

    [[noreturn]] void fail_at(const char *what, int64_t index) const
    {
        fail(std::string(what) + " " + name + "[" + std::to_string(index) + "]");
    }

    void check_bounds(int64_t index) const
    {
        if (index < 0 || index >= count) {
            fail(std::string("access of ") + name + "[" + std::to_string(index) + "], which has " +
                 std::to_string(count) + " elements");
        }
    }

    // Whether nothing orders this thread after what `other` did at those epochs.
    static bool races(unsigned other, unsigned epoch, unsigned warp_epoch)
    {
        const unsigned self = thread_number();
        if (other == self || epoch != block.epoch) {
            return false;
        }
        const bool same_warp = other / WARP == self / WARP;
        return !same_warp || warp_epoch == block.warp_epoch[self / WARP];
    }

    void note_read(int64_t index, size_t size) const
    {
        if (history == nullptr) {
            if (defined != nullptr && !defined[index * size]) {
                fail_at("read of the unwritten element", index);
            }
            return;
        }
        History &h = history[index];
        const unsigned warp_epoch = block.warp_epoch[thread_number() / WARP];
        if (!h.written) {
            fail_at("read of the unwritten element", index);
        }
        if (races(h.writer, h.write_epoch, h.write_warp_epoch)) {
            fail_at("no barrier between a write and this read of", index);
        }
        const bool recent = h.read && h.read_epoch == block.epoch;
        h.read_by_many = recent && (h.read_by_many || h.reader != thread_number());
        h.read = true;
        h.reader = thread_number();
        h.read_epoch = block.epoch;
        h.read_warp_epoch = warp_epoch;
    }

    void note_write(int64_t index, size_t size) const
    {
        if (history == nullptr) {
            if (defined == nullptr) {
                fail_at("write into the read-only", index);
            }
            memset(defined + index * size, 1, size);
            return;
        }
        History &h = history[index];
        if (h.written && races(h.writer, h.write_epoch, h.write_warp_epoch)) {
            fail_at("no barrier between two writes of", index);
        }
        const bool many = h.read_by_many && h.read_epoch == block.epoch;
        if (h.read && (many || races(h.reader, h.read_epoch, h.read_warp_epoch))) {
            fail_at("no barrier between a read and this write of", index);
        }
        h.written = true;
        h.writer = thread_number();
        h.write_epoch = block.epoch;
        h.write_warp_epoch = block.warp_epoch[thread_number() / WARP];
        h.read = h.read_by_many = false;
        note_unshared();
    }
};

// One element: converts to its value, and takes one.
template <typename T>
struct Cell {
    const Array *array;
    T *data;
    int64_t index;
    Site site = {};

    operator T() const
    {
        note(1, Kind::shared_load);
        array->note_read(index, sizeof(T));
        return data[index];
    }

    T operator=(T value) const
    {
        note(1);
        array->note_write(index, sizeof(T));
        return data[index] = value;
    }

    T operator=(const Cell &other) const { return *this = static_cast<T>(other); }

    // Where an atomic operation works: read and written, in an order that does not matter.
    T *operator&() const
    {
        note(1);
        if (array->history == nullptr) {
            array->note_read(index, sizeof(T));
            array->note_write(index, sizeof(T));
        }
        return &data[index];
    }

    // An access to so many elements at once. Shared arrays start at bank 0, which is as good as any.
    void note(unsigned count, Kind kind = Kind::shared) const
    {
        const bool shared = array->history != nullptr;
        const uint64_t address = shared ? index * sizeof(T) : (uint64_t)(uintptr_t)(data + index);
        kind = shared ? kind : Kind::global;
        site.note(kind, address, count * sizeof(T), thread_number());
    }
};

// An array, accessed at a known place of the text.
template <typename A>
struct Sited {
    const A *array;
    Site site;

    auto operator[](int64_t index) const
    {
        auto cell = (*array)[index];
        cell.site = site;
        return cell;
    }
};

// A parameter of a kernel.
template <typename T>
struct Global {
    Array array;
    T *data;

    Global(const char *name, void *data, int64_t count, uint8_t *defined)
        : array{name, count, defined, nullptr}, data(static_cast<T *>(data))
    {
    }

    Cell<T> operator[](int64_t index) const
    {
        array.check_bounds(index);
        return Cell<T>{&array, data, index};
    }

    Sited<Global> operator()(Site site) const { return {this, site}; }
};

// A shared array: one for the block at hand, poisoned when a block enters. `offset`: where in the
// shared memory of the launch it lies; negative if it is declared with its size.
template <typename T, int64_t N>
struct Shared {
    Array array;
    alignas(16) T data[N];
    History history[N];
    uint64_t serial = 0;

    void enter(const char *name, int64_t offset, unsigned alignment)
    {
        if (offset >= 0 && size_t(offset) + sizeof data > block.shared) {
            fail(std::string(name) + " ends beyond the " + std::to_string(block.shared) +
                 " bytes of shared memory asked for");
        }
        if (serial == block.serial) {
            return;
        }
        serial = block.serial;
        const bool on_kib = (offset < 0 ? alignment : unsigned(offset)) % KIB == 0;
        array = Array{name, N, nullptr, history, on_kib};
        memset(data, 0xff, sizeof data);
        std::fill(history, history + N, History());
    }

    Cell<T> operator[](int64_t index) const
    {
        array.check_bounds(index);
        return Cell<T>{&array, const_cast<T *>(data), index};
    }

    Sited<Shared> operator()(Site site) const { return {this, site}; }
};

// ------------------------------------------------------------------ threads

static Thread &current() { return block.threads[thread_number()]; }

// Notes that this thread has written what products of warp groups cannot see yet.
static void note_unshared()
{
    if (!current().unshared) {
        current().unshared = true;
        current().unshared_epoch = block.epoch;
    }
}

static void start(Thread &thread);

// From the scheduler to the current thread, until that waits or is done.
static void resume()
{
    if (_setjmp(block.scheduler) == 0) {
        Thread &thread = current();
        if (thread.stack) {
            _longjmp(thread.place, 1);
        }
        start(thread);
    }
}

// From the current thread to the scheduler, until it is resumed.
static void suspend()
{
    if (_setjmp(current().place) == 0) {
        _longjmp(block.scheduler, 1);
    }
}

static void wait(State state)
{
    const Dim self = threadIdx;
    current().state = state;
    suspend();
    threadIdx = self;
    if (!fault.empty()) {
        throw Fault();
    }
}

static void fibre()
{
    for (;;) {
        try {
            block.kernel();
        } catch (const Fault &) {
        }
        current().state = State::done;
        suspend();
    }
}

// Enters a thread for the first time.
static void start(Thread &thread)
{
    thread.stack.reset(new char[STACK_BYTES]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = STACK_BYTES;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, fibre, 0);
    setcontext(&thread.context);
}

static bool all_at_barrier()
{
    return std::all_of(block.threads.begin(), block.threads.end(),
                       [](const Thread &t) { return t.state == State::at_barrier; });
}

// Lets the lanes of a warp go on that wait for one another and have all arrived.
static bool release_warps()
{
    bool released = false;
    for (unsigned first = 0; first < block.threads.size(); first += WARP) {
        const unsigned lanes = std::min<size_t>(WARP, block.threads.size() - first);
        const unsigned exist = lanes == WARP ? 0xffffffffu : (1u << lanes) - 1u;
        for (unsigned lane = 0; lane < lanes; ++lane) {
            const unsigned mask = block.threads[first + lane].mask & exist;
            const bool orders = block.threads[first + lane].orders;
            if (block.threads[first + lane].state != State::at_warp) {
                continue;
            }
            bool complete = true;
            for (unsigned other = 0; other < lanes; ++other) {
                const Thread &thread = block.threads[first + other];
                complete &= !(mask >> other & 1u) ||
                            (thread.state == State::at_warp && (thread.mask & exist) == mask &&
                             thread.orders == orders);
            }
            for (unsigned other = 0; complete && other < lanes; ++other) {
                if (mask >> other & 1u) {
                    block.threads[first + other].state = State::ready;
                }
            }
            released |= complete;
            block.warp_epoch[first / WARP] += complete && mask == exist && orders;
        }
    }
    return released;
}

static void fail_stuck()
{
    for (unsigned number = 0; number < block.threads.size(); ++number) {
        threadIdx.x = number;
        const State state = block.threads[number].state;
        if (state == State::done && fault.empty()) {
            fault = "thread " + std::to_string(number) + " of block " +
                    std::to_string(blockIdx.x) + " ended while others wait for it";
        }
    }
    if (fault.empty()) {
        fault = "threads of block " + std::to_string(blockIdx.x) + " wait at different barriers";
    }
    for (unsigned number = 0; number < block.threads.size(); ++number) {
        threadIdx.x = number;
        if (current().state != State::done) {  // let it unwind
            resume();
        }
    }
}

static void run_fibres(const std::vector<unsigned> &order)
{
    for (Thread &thread : block.threads) {
        thread.state = State::ready;
        thread.exchange = Exchange();
        thread.copies.clear();
        thread.batch = 0;
        thread.products.clear();
        thread.product_batch = 0;
        thread.begun = thread.unshared = false;
    }
    for (;;) {
        for (unsigned number : order) {
            threadIdx = Dim{number, 0, 0};
            if (current().state == State::ready) {
                resume();
            }
        }
        const auto is_done = [](const Thread &t) { return t.state == State::done; };
        if (std::all_of(block.threads.begin(), block.threads.end(), is_done)) {
            return;
        }
        if (fault.empty() && all_at_barrier()) {
            ++block.epoch;
            Profile::end_interval();
            for (Thread &thread : block.threads) {
                thread.state = State::ready;
            }
        } else if (!fault.empty() || !release_warps()) {
            fail_stuck();
            return;
        }
    }
}

static void run_plainly(const std::vector<unsigned> &order)
{
    for (unsigned number : order) {
        threadIdx = Dim{number, 0, 0};
        try {
            block.kernel();
        } catch (const Fault &) {
            return;
        }
    }
}

// 0: ascending, 1: descending, others: shuffled by that seed.
static std::vector<unsigned> order_of(unsigned count, unsigned order)
{
    std::vector<unsigned> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0u);
    if (order == 1) {
        std::reverse(numbers.begin(), numbers.end());
    } else if (order > 1) {
        std::shuffle(numbers.begin(), numbers.end(), std::mt19937(order));
    }
    return numbers;
}

// Runs a grid. `fibres`: threads wait for one another.
static const char *launch(std::function<void()> kernel, unsigned grid, unsigned threads,
                          unsigned order, bool fibres, unsigned shared)
{
    fault.clear();
    gridDim = Dim{grid, 1, 1};
    blockDim = Dim{threads, 1, 1};
    block.kernel = std::move(kernel);
    block.shared = shared;
    block.early = order % 2 == 1;
    block.threads.resize(threads);
    block.warp_epoch.assign((threads + WARP - 1) / WARP, 0);
    const std::vector<unsigned> thread_order = order_of(threads, order);
    unsigned blocks = 0;
    for (unsigned number : order_of(grid, order)) {
        blockIdx = Dim{number, 0, 0};
        ++block.serial;
        block.epoch = 0;
        if (fibres) {
            run_fibres(thread_order);
        } else {
            run_plainly(thread_order);
        }
        Profile::end_block();
        if (!fault.empty() || Profile::is_enough(++blocks)) {
            break;
        }
    }
    return fault.empty() ? nullptr : fault.c_str();
}

}  // namespace simulator

// ------------------------------------------------------------------ what kernels call

static inline void __syncthreads() { simulator::wait(simulator::State::at_barrier); }

namespace simulator {

// Waits for lanes of the warp. Only `__syncwarp` orders memory too; shuffles, votes and products of
// matrices do not (CUDA C++ Programming Guide, "Warp Shuffle Functions").
static inline void meet(unsigned mask, bool orders)
{
    current().mask = mask;
    current().orders = orders;
    wait(State::at_warp);
}

}  // namespace simulator

static inline void __syncwarp(unsigned mask = 0xffffffffu) { simulator::meet(mask, true); }

namespace simulator {

// Leaves a value for the warp, waits, and gives what `lane` of this warp left.
template <typename T>
static T exchange(unsigned mask, T value, unsigned lane)
{
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    Exchange &mine = current().exchange;
    const unsigned turn = mine.turn;
    mine.turn ^= 1u;
    memcpy(&mine.bits[turn], &value, sizeof(T));
    simulator::meet(mask, false);
    const unsigned source = thread_number() / WARP * WARP + lane;
    if (!(mask >> lane & 1u) || source >= block.threads.size()) {
        fail("shuffle from lane " + std::to_string(lane) + ", which takes no part");
    }
    memcpy(&value, &block.threads[source].exchange.bits[turn], sizeof(T));
    return value;
}

static inline unsigned lane() { return thread_number() % WARP; }

}  // namespace simulator

template <typename T>
static T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    const unsigned start = simulator::lane() / width * width;
    return simulator::exchange(mask, value, start + unsigned(lane) % width);
}

template <typename T>
static T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    const unsigned source = simulator::lane() ^ unsigned(lanes);
    const bool inside = source / width <= simulator::lane() / width;
    return simulator::exchange(mask, value, inside ? source : simulator::lane());
}

template <typename T>
static T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32)
{
    const bool inside = simulator::lane() % width + lanes < unsigned(width);
    return simulator::exchange(mask, value, simulator::lane() + (inside ? lanes : 0));
}

template <typename T>
static T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32)
{
    const bool inside = simulator::lane() % width >= lanes;
    return simulator::exchange(mask, value, simulator::lane() - (inside ? lanes : 0));
}

static unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned votes = 0;
    simulator::Exchange &mine = simulator::current().exchange;
    const unsigned turn = mine.turn;
    mine.turn ^= 1u;
    mine.predicate[turn] = predicate != 0;
    simulator::meet(mask, false);
    const unsigned first = simulator::thread_number() / simulator::WARP * simulator::WARP;
    for (unsigned lane = 0; lane < simulator::WARP; ++lane) {
        if ((mask >> lane & 1u) && first + lane < simulator::block.threads.size()) {
            votes |= unsigned(simulator::block.threads[first + lane].exchange.predicate[turn])
                     << lane;
        }
    }
    return votes;
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}

template <typename T>
static T atomicAdd(T *place, T value)
{
    const T old = *place;
    *place = old + value;
    return old;
}

template <typename T>
static T atomicMin(T *place, T value)
{
    const T old = *place;
    *place = value < old ? value : old;
    return old;
}

template <typename T>
static T atomicMax(T *place, T value)
{
    const T old = *place;
    *place = value > old ? value : old;
    return old;
}

template <typename T>
static T atomicExch(T *place, T value)
{
    const T old = *place;
    *place = value;
    return old;
}

template <typename T>
static T atomicCAS(T *place, T expected, T value)
{
    const T old = *place;
    *place = old == expected ? value : old;
    return old;
}

// ------------------------------------------------------------------ instructions (instructions.py)

namespace simulator {

// A copied word is unwritten until its batch has been waited for.
static void issue(const Cell<uint32_t> &to, int offset, uint32_t word)
{
    const int64_t index = to.index + offset;
    to.array->check_bounds(index);
    to.array->note_write(index, sizeof(uint32_t));
    History *history = &to.array->history[index];
    history->written = false;
    current().copies.push_back(Copy{&to.data[index], history, word, current().batch});
}

static void arrive(const Copy &copy)
{
    *copy.place = copy.word;
    copy.history->written = true;
    copy.history->writer = thread_number();
    copy.history->write_epoch = block.epoch;
    copy.history->write_warp_epoch = block.warp_epoch[thread_number() / WARP];
    note_unshared();
}

}  // namespace simulator

#define ASSUME_ALIGNED(x) simulator::check_alignment(x)

namespace simulator {

template <typename T>
static void check_alignment(const Global<T> &parameter)
{
    if ((uintptr_t)parameter.data % 16 != 0) {
        fail(std::string("misaligned ") + parameter.array.name);
    }
}

}  // namespace simulator

namespace simulator {

template <typename T>
static void check_vector(const Cell<T> &place, size_t count)
{
    if ((uintptr_t)(place.data + place.index) % (count * sizeof(T)) != 0) {
        place.array->fail_at("access of a vector that is not aligned, at", place.index);
    }
    place.array->check_bounds(place.index + int64_t(count) - 1);
}

}  // namespace simulator

template <typename T, typename... R>
static void load_vector(const simulator::Cell<T> &from, R &...found)
{
    simulator::check_vector(from, sizeof...(R));
    from.note(sizeof...(R), simulator::Kind::shared_load);
    simulator::Cell<T> next{from.array, from.data, from.index};
    ((found = T(next), ++next.index), ...);
}

template <typename T, typename... V>
static void store_vector(const simulator::Cell<T> &to, V... values)
{
    simulator::check_vector(to, sizeof...(V));
    to.note(sizeof...(V));
    simulator::Cell<T> next{to.array, to.data, to.index};
    ((next = T(values), ++next.index), ...);
}

template <typename T>
static void copy16(const simulator::Cell<uint32_t> &to, const simulator::Cell<const T> &from,
                   int valid, uint32_t other)
{
    uint32_t words[4] = {other, other, other, other};
    if (to.index % 4 != 0 || (uintptr_t)(from.data + from.index) % 16 != 0) {
        simulator::fail("copy of 16 bytes that are not aligned");
    }
    for (int64_t n = 0; valid && n < int64_t(16 / sizeof(T)); ++n) {
        from.array->check_bounds(from.index + n);
        from.array->note_read(from.index + n, sizeof(T));
    }
    to.note(4);
    if (valid) {
        from.note(16 / sizeof(T));
        memcpy(words, from.data + from.index, sizeof words);
    }
    for (int n = 0; n < 4; ++n) {
        simulator::issue(to, n, words[n]);
    }
}

namespace simulator {

// What the lanes of a warp get of four matrices, each of whose rows a lane names.
static void matrices(uint32_t *const (&found)[4], const Cell<uint32_t> &row, bool transposed)
{
    if (row.index % 4 != 0) {
        fail("row of a matrix that is not aligned");
    }
    row.array->check_bounds(row.index + 3);
    row.note(4);
    Exchange &exchange = current().exchange;
    const unsigned turn = exchange.turn;
    exchange.turn ^= 1u;
    exchange.bits[turn] = uint64_t(row.index);
    simulator::meet(0xffffffffu, false);
    const unsigned first = thread_number() / WARP * WARP, group = lane() / 4, quad = lane() % 4;
    const auto word = [&](unsigned lane, unsigned place) {
        const int64_t index = int64_t(block.threads[first + lane].exchange.bits[turn]) + place;
        return uint32_t(Cell<uint32_t>{row.array, row.data, index});
    };
    const auto half = [&](unsigned lane) {
        return word(lane, group / 2) >> (group % 2 ? 16 : 0) & 0xffffu;
    };
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const unsigned rows = 8 * matrix;
        *found[matrix] = transposed ? half(rows + 2 * quad) | half(rows + 2 * quad + 1) << 16
                                    : word(rows + group, quad);
    }
}

}  // namespace simulator

static void load_matrices(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3,
                          const simulator::Cell<uint32_t> &row)
{
    simulator::matrices({&r0, &r1, &r2, &r3}, row, false);
}

static void load_matrices_transposed(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3,
                                     const simulator::Cell<uint32_t> &row)
{
    simulator::matrices({&r0, &r1, &r2, &r3}, row, true);
}

static inline void commit_copies() { ++simulator::current().batch; }

template <int N>
static void wait_copies()
{
    simulator::Thread &thread = simulator::current();
    size_t kept = 0;
    for (const simulator::Copy &copy : thread.copies) {
        if (copy.batch + N < thread.batch) {
            simulator::arrive(copy);
        } else {
            thread.copies[kept++] = copy;
        }
    }
    thread.copies.resize(kept);
}

namespace simulator {

static uint32_t bits_of_value(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Codes of f16 and bf16, rounded to nearest, ties to even.
static uint32_t half_of_value(float value)
{
    const uint32_t sign = bits_of_value(value) >> 16 & 0x8000u;
    const float size = std::fabs(value);
    if (size != size) {
        return sign | 0x7e00u;
    }
    if (size >= 65520.0f) {
        return sign | 0x7c00u;
    }
    const int exponent = std::max(size > 0.0f ? std::ilogb(size) : -14, -14);
    const float scaled = std::nearbyint(std::ldexp(size, 10 - exponent));
    return sign | (uint32_t(exponent + 14) * 1024u + uint32_t(scaled));
}

static uint32_t bfloat_of_value(float value)
{
    const uint32_t bits = bits_of_value(value);
    return value != value ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

}  // namespace simulator

static inline void power_of_two(float &to, float x)
{
    to = std::exp2(x);
    to = to < 0x1p-126f ? 0.0f : to;
}

template <typename T>
static void trade(T &a, T &b)
{
    const bool odd = threadIdx.x & 1u;
    const T found = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
    (odd ? a : b) = found;
}

static inline void pack_f16(uint32_t &word, float low, float high)
{
    word = simulator::half_of_value(low) | simulator::half_of_value(high) << 16;
}

static inline void pack_bf16(uint32_t &word, float low, float high)
{
    word = simulator::bfloat_of_value(low) | simulator::bfloat_of_value(high) << 16;
}

namespace simulator {

static float value_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float value_of_half(uint32_t bits)
{
    const uint32_t exponent = bits >> 10 & 31u, fraction = bits & 1023u;
    float value = std::ldexp(float(fraction + (exponent ? 1024u : 0u)), int(exponent ? exponent : 1) - 25);
    if (exponent == 31u) {
        value = fraction ? NAN : INFINITY;
    }
    return bits & 0x8000u ? -value : value;
}

static double products_f16(uint32_t x, uint32_t y)
{
    return double(value_of_half(x & 0xffffu)) * value_of_half(y & 0xffffu) +
           double(value_of_half(x >> 16)) * value_of_half(y >> 16);
}

static double products_bf16(uint32_t x, uint32_t y)
{
    return double(value_of_bits(x << 16)) * value_of_bits(y << 16) +
           double(value_of_bits(x & 0xffff0000u)) * value_of_bits(y & 0xffff0000u);
}

static double products_tf32(uint32_t x, uint32_t y)
{
    return double(value_of_bits(x & 0xffffe000u)) * value_of_bits(y & 0xffffe000u);
}

template <typename A, typename B>
static int32_t products_of_bytes(uint32_t x, uint32_t y)
{
    int32_t total = 0;
    for (int shift = 0; shift < 32; shift += 8) {
        total += int32_t(A(x >> shift)) * int32_t(B(y >> shift));
    }
    return total;
}

constexpr auto products_s8 = products_of_bytes<int8_t, int8_t>;
constexpr auto products_u8 = products_of_bytes<uint8_t, uint8_t>;
constexpr auto products_s8_u8 = products_of_bytes<int8_t, uint8_t>;
constexpr auto products_u8_s8 = products_of_bytes<uint8_t, int8_t>;

// d += a b over a warp: sums are exact to the rounding of double, and rounded once.
template <typename S, typename W>
static void multiply(W (*products)(uint32_t, uint32_t), S *const (&d)[4],
                     const uint32_t (&mine)[6])
{
    Exchange &exchange = current().exchange;
    const unsigned turn = exchange.turn;
    exchange.turn ^= 1u;
    memcpy(exchange.words[turn], mine, sizeof mine);
    simulator::meet(0xffffffffu, false);
    const unsigned first = thread_number() / WARP * WARP, group = lane() / 4, quad = lane() % 4;
    for (unsigned element = 0; element < 4; ++element) {
        const unsigned below = element / 2, column = 2 * quad + element % 2;
        W total = W(*d[element]);
        for (unsigned word = 0; word < 8; ++word) {
            const unsigned half = word / 4, step = word % 4;
            const auto &a = block.threads[first + 4 * group + step].exchange.words[turn];
            const auto &b = block.threads[first + 4 * column + step].exchange.words[turn];
            total += products(a[2 * half + below], b[4 + half]);
        }
        *d[element] = S(total);
    }
}

}  // namespace simulator

#define SIMULATED_PRODUCT(TYPE, S)                                                                 \
    static void mma_##TYPE(S &d0, S &d1, S &d2, S &d3, uint32_t a0, uint32_t a1, uint32_t a2,      \
                           uint32_t a3, uint32_t b0, uint32_t b1)                                  \
    {                                                                                              \
        simulator::multiply<S>(simulator::products_##TYPE, {&d0, &d1, &d2, &d3},                   \
                               {a0, a1, a2, a3, b0, b1});                                          \
    }
SIMULATED_PRODUCT(f16, float)
SIMULATED_PRODUCT(bf16, float)
SIMULATED_PRODUCT(tf32, float)
SIMULATED_PRODUCT(s8, int32_t)
SIMULATED_PRODUCT(u8, int32_t)
SIMULATED_PRODUCT(s8_u8, int32_t)
SIMULATED_PRODUCT(u8_s8, int32_t)
#undef SIMULATED_PRODUCT

// ------------------------------------------------- warp groups (warpgroup_instructions.py)

static inline void share_copies() { simulator::current().unshared = false; }

static inline void begin_products() { simulator::current().begun = true; }

static inline void commit_products()
{
    ++simulator::current().product_batch;
    simulator::current().begun = false;
}

template <int N>
static void wait_products()
{
    std::vector<simulator::Product> &products = simulator::current().products;
    size_t kept = 0;
    for (simulator::Product &product : products) {
        if (product.batch + N < simulator::current().product_batch) {
            product.compute();
        } else {
            std::swap(products[kept++], product);
        }
    }
    products.resize(kept);
}

namespace simulator {

static void take_sums()
{
    if (!current().products.empty()) {
        fail("sums of products that have not been waited for");
    }
}

// An operand of a warp group's product: eight lines after eight, 128 bytes each, from the first
// word on, and `across` bytes from one 64 positions to the next.
struct Rows {
    Cell<uint32_t> first;
    int64_t across;

    uint32_t at(int64_t byte) const
    {
        const int64_t place = first.index * 4 + byte, permuted = place ^ (place >> 3 & 0x70);
        first.array->check_bounds(permuted / 4);
        return Cell<uint32_t>{first.array, first.data, permuted / 4};
    }

    // Words of a position; of operands across put together from halves.
    uint32_t word(unsigned position, unsigned deep) const
    {
        if (!across) {
            return at(position / 8 * KIB + position % 8 * 128 + deep * 4);
        }
        const auto half = [&](unsigned row) {
            const int64_t line = position / 64 * across + row / 8 * KIB + row % 8 * 128;
            return at(line + position % 64 / 2 * 4) >> position % 2 * 16 & 0xffffu;
        };
        return half(2 * deep) | half(2 * deep + 1) << 16;
    }
};

template <typename S, typename W>
static void add_products(W (*products)(uint32_t, uint32_t), S *sums, Rows a, Rows b,
                         unsigned columns)
{
    const unsigned group = lane() / 4, quad = lane() % 4, warp = thread_number() / WARP % 4;
    for (unsigned element = 0; element < columns / 2; ++element) {
        const unsigned row = warp * 16 + group + element / 2 % 2 * 8;
        const unsigned column = element / 4 * 8 + quad * 2 + element % 2;
        W total = W(sums[element]);
        for (unsigned deep = 0; deep < 8; ++deep) {
            total += products(a.word(row, deep), b.word(column, deep));
        }
        sums[element] = S(total);
    }
}

// Begins a product: done now in some orders, when it is waited for in others.
template <typename S, typename W>
static void begin(W (*products)(uint32_t, uint32_t), S *sums, Rows a, Rows b, unsigned columns)
{
    if (!current().begun) {
        fail("product of a warp group without begin_products");
    }
    if (!a.first.array->on_kib || !b.first.array->on_kib) {
        fail("operand of a warp group that does not start at a whole KiB");
    }
    for (const Thread &thread : block.threads) {
        if (thread.unshared && thread.unshared_epoch < block.epoch) {
            fail("product of a warp group of what was written without share_copies");
        }
    }
    const auto compute = [=] { add_products(products, sums, a, b, columns); };
    if (block.early) {
        compute();
    } else {
        current().products.push_back(Product{compute, current().product_batch});
    }
}

}  // namespace simulator

template <typename S>
static void take_sums_32(S &)
{
    simulator::take_sums();
}

template <typename S>
static void take_sums_64(S &)
{
    simulator::take_sums();
}

template <typename S>
static void take_sums_128(S &)
{
    simulator::take_sums();
}

#define SIMULATED_GROUP(TYPE, S, N)                                                                \
    template <int ACROSS_A, int ACROSS_B>                                                          \
    static void wgmma_##TYPE##_n##N(S &sums, const simulator::Cell<uint32_t> &a,                   \
                                    const simulator::Cell<uint32_t> &b)                            \
    {                                                                                              \
        simulator::begin<S>(simulator::products_##TYPE, &sums, {a, ACROSS_A}, {b, ACROSS_B}, N);   \
    }
#define SIMULATED_GROUPS(TYPE, S)                                                                  \
    SIMULATED_GROUP(TYPE, S, 64)                                                                   \
    SIMULATED_GROUP(TYPE, S, 128)                                                                  \
    SIMULATED_GROUP(TYPE, S, 256)
SIMULATED_GROUPS(f16, float)
SIMULATED_GROUPS(bf16, float)
SIMULATED_GROUPS(tf32, float)
SIMULATED_GROUPS(s8, int32_t)
SIMULATED_GROUPS(u8, int32_t)
SIMULATED_GROUPS(s8_u8, int32_t)
SIMULATED_GROUPS(u8_s8, int32_t)
#undef SIMULATED_GROUPS
#undef SIMULATED_GROUP
