// The instructions of bulk_instructions.py: copies of boxes, and mbarriers that count their bytes.
//
// A box arrives when it is asked for in some orders, when a thread waits for it in others. What
// arrives so is ordered by the mbarrier alone: races with it are for the PTX machine to find.

namespace simulator {

static Phases &phases_of(const Cell<uint64_t> &barrier)
{
    const auto found = block.phases.find(barrier.data + barrier.index);
    barrier.array->check_bounds(barrier.index);
    if (found == block.phases.end()) {
        fail("mbarrier that was never made");
    }
    return found->second;
}

static void end_if_complete(Phases &phases)
{
    if (phases.pending == 0 && phases.bytes == 0) {
        phases.pending = phases.arrivals;
        ++phases.phase;
        ++block.moves;
    }
}

static void arrive(Phases &phases)
{
    if (phases.pending == 0) {
        fail("arrival at an mbarrier that waits for none");
    }
    --phases.pending;
    end_if_complete(phases);
}

static void deliver(Phases &phases)
{
    std::vector<std::function<void()>> coming;
    std::swap(coming, phases.coming);
    for (const auto &box : coming) {
        box();
    }
    end_if_complete(phases);
}

// One line of a box: the chunks of 16 bytes of a row, swizzled.
static void put_line(const Cell<uint32_t> &to, int64_t line, const unsigned char *bytes)
{
    for (int64_t byte = 0; byte < 128; byte += 4) {
        const int64_t place = to.index * 4 + line * 128 + byte, at = (place ^ (place >> 3 & 0x70)) / 4;
        to.array->check_bounds(at);
        memcpy(to.data + at, bytes + byte, 4);
        History &history = to.array->history[at];
        history = History();
        history.written = true;
        history.write_epoch = ~0u;
    }
}

static void put_box(const Cell<uint32_t> &to, const TensorMap &map, const int64_t *first)
{
    const int64_t inner = map.box[0] * map.element;
    int64_t lines = 1;
    for (int64_t d = 1; d < map.rank; ++d) {
        lines *= map.box[d];
    }
    for (int64_t line = 0; line < lines; ++line) {
        unsigned char bytes[128] = {};
        int64_t rest = line, start = 0;
        bool inside = true;
        for (int64_t d = 1; d < map.rank; ++d) {
            const int64_t at = first[d] + rest % map.box[d];
            rest /= map.box[d];
            inside &= at >= 0 && at < map.dims[d];
            start += at * map.strides[d - 1];
        }
        const int64_t count = inside ? std::min(map.box[0], map.dims[0] - first[0]) : 0;
        start += first[0] * map.element;
        for (int64_t byte = 0; byte < count * map.element; ++byte) {
            if (start + byte < 0 || start + byte >= map.bytes) {
                fail("copy of a box beyond its buffer");
            }
            if (map.defined != nullptr && !map.defined[start + byte]) {
                fail("copy of a box that was not written");
            }
            bytes[byte] = map.data[start + byte];
        }
        if (inner != 128) {
            fail("box whose lines are not of 128 bytes");
        }
        put_line(to, line, bytes);
    }
}

template <size_t R>
static void copy_box(const Cell<uint32_t> &to, const Cell<uint64_t> &barrier, const TensorMap &map,
                     const int64_t (&first)[R])
{
    if (map.rank != int64_t(R) || !to.array->on_kib || to.index * 4 % KIB != 0) {
        fail("copy of a box of other dimensions, or to no whole KiB");
    }
    Phases &phases = phases_of(barrier);
    int64_t bytes = map.element;
    for (int64_t d = 0; d < map.rank; ++d) {
        bytes *= map.box[d];
    }
    std::vector<int64_t> at(first, first + R);
    Phases *const target = &phases;
    phases.coming.push_back([to, map, at, target, bytes] {
        put_box(to, map, at.data());
        target->bytes -= bytes;
    });
    ++block.moves;
    if (block.early) {
        deliver(phases);
    }
}

}  // namespace simulator

static void make_barrier(const simulator::Cell<uint64_t> &barrier, int64_t arrivals)
{
    simulator::Phases phases;
    phases.arrivals = phases.pending = arrivals;
    simulator::block.phases[barrier.data + barrier.index] = phases;
}

static void fence_barriers() {}

static void meet_warp() { __syncwarp(); }

static void expect_bytes(const simulator::Cell<uint64_t> &barrier, int64_t bytes)
{
    simulator::Phases &phases = simulator::phases_of(barrier);
    phases.bytes += bytes;
    simulator::arrive(phases);
}

static void give_back(const simulator::Cell<uint64_t> &barrier)
{
    if (simulator::lane() == 0) {
        simulator::arrive(simulator::phases_of(barrier));
    }
}

static void await_phase(const simulator::Cell<uint64_t> &barrier, int64_t parity)
{
    simulator::Phases &phases = simulator::phases_of(barrier);
    simulator::current().awaits = true;
    while ((phases.phase & 1) == parity) {
        simulator::deliver(phases);
        if ((phases.phase & 1) == parity) {
            simulator::wait(simulator::State::polling);
        }
    }
}

static void give_back_to_both(const simulator::Cell<uint64_t> &barrier)
{
    if (simulator::lane() < 2) {
        simulator::arrive(simulator::phases_of(simulator::in_block(barrier, simulator::lane())));
    }
}

// The copies of this thread so far arrive at once, or when a thread waits for them.
static void arrive_with_copies(const simulator::Cell<uint64_t> &barrier)
{
    simulator::Phases *const phases = &simulator::phases_of(barrier);
    std::vector<simulator::Copy> copies;
    std::swap(copies, simulator::current().copies);
    simulator::current().unshared = false;
    phases->coming.push_back([copies, phases] {
        for (const simulator::Copy &copy : copies) {
            *copy.place = copy.word;
            *copy.history = simulator::History();
            copy.history->written = true;
            copy.history->write_epoch = ~0u;
        }
        --phases->pending;
    });
    ++simulator::block.moves;
    if (simulator::block.early) {
        simulator::deliver(*phases);
    }
}

template <int BLOCKS>
static void meet_cluster()
{
    if (BLOCKS != simulator::block.ranks) {
        simulator::fail("barrier of a cluster of other blocks");
    }
    simulator::wait(simulator::State::at_cluster);
}

template <typename... R>
static void load_from_block(const simulator::Cell<float> &from, int64_t rank, R &...found)
{
    simulator::Cell<float> next = simulator::in_block(from, unsigned(rank));
    ((found = float(next), ++next.index), ...);
}

static void make_uniform(int32_t &to, int64_t value) { to = __shfl_sync(0xffffffffu, int32_t(value), 0); }

template <int N>
static void take_registers()
{
}

template <int N>
static void leave_registers()
{
}

#define SHARED_BOX(R)                                                                              \
    template <int BLOCK, typename... C>                                                            \
    static void share_box_##R(const simulator::Cell<uint32_t> &to,                                 \
                              const simulator::Cell<uint64_t> &barrier,                            \
                              const simulator::TensorMap &map, C... first)                         \
    {                                                                                              \
        for (unsigned rank = 0; rank < 2 && simulator::block.rank == BLOCK; ++rank) {              \
            simulator::copy_box<R>(simulator::in_block(to, rank),                                  \
                                   simulator::in_block(barrier, rank), map, {int64_t(first)...});  \
        }                                                                                          \
    }
SHARED_BOX(2)
SHARED_BOX(3)
SHARED_BOX(4)
SHARED_BOX(5)
#undef SHARED_BOX

#define copy_box_2(to, barrier, map, a, b) simulator::copy_box<2>(to, barrier, map, {a, b})
#define copy_box_3(to, barrier, map, a, b, c) simulator::copy_box<3>(to, barrier, map, {a, b, c})
#define copy_box_4(to, barrier, map, a, b, c, d)                                                   \
    simulator::copy_box<4>(to, barrier, map, {a, b, c, d})
#define copy_box_5(to, barrier, map, a, b, c, d, e)                                                \
    simulator::copy_box<5>(to, barrier, map, {a, b, c, d, e})
