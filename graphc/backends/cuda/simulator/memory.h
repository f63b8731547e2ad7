// Arrays of global and shared memory, and their elements: every access is checked.

namespace simulator {

static void note_unshared();
static bool awaits_phases();

// A global or shared array: bounds, and per element either a byte that says whether it was written
// (null: it is an input) or a history.
struct Array {
    const char *name;
    int64_t count;
    uint8_t *defined;
    History *history;
    bool on_kib = false;  // starts at a whole KiB of shared memory
    int64_t apart = 0;    // bytes from that of one block of a cluster to the next one's

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

    // Whether nothing orders this thread after what `other` did at those epochs. What mbarriers
    // order is for the PTX machine to follow.
    static bool races(unsigned other, unsigned epoch, unsigned warp_epoch)
    {
        const unsigned self = thread_number();
        if (other == self || epoch != block.epoch() || awaits_phases()) {
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
        const bool recent = h.read && h.read_epoch == block.epoch();
        h.read_by_many = recent && (h.read_by_many || h.reader != thread_number());
        h.read = true;
        h.reader = thread_number();
        h.read_epoch = block.epoch();
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
        const bool many = h.read_by_many && h.read_epoch == block.epoch() && !awaits_phases();
        if (h.read && (many || races(h.reader, h.read_epoch, h.read_warp_epoch))) {
            fail_at("no barrier between a read and this write of", index);
        }
        h.written = true;
        h.writer = thread_number();
        h.write_epoch = block.epoch();
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

// The same element of a shared array in another block of the cluster.
template <typename T>
static Cell<T> in_block(const Cell<T> &cell, unsigned rank)
{
    if (rank >= block.ranks) {
        fail("access of shared memory of a block that the cluster has not");
    }
    const int64_t far = cell.array->apart * (int64_t(rank) - int64_t(block.rank));
    const auto moved = [far](const auto *place) { return (decltype(place))((const char *)place + far); };
    return Cell<T>{moved(cell.array), const_cast<T *>(moved(cell.data)), cell.index, cell.site};
}

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

// A shared array of each block of a cluster, poisoned when that enters. `offset`: where in the
// shared memory of the launch it lies; negative if it is declared with its size.
template <typename T, int64_t N>
struct Shared {
    struct Part {
        Array array;
        alignas(16) T data[N];
        History history[N];
        uint64_t serial = 0;
    };
    Part parts[MOST_RANKS];

    void enter(const char *name, int64_t offset, unsigned alignment)
    {
        if (offset >= 0 && size_t(offset) + N * sizeof(T) > block.shared) {
            fail(std::string(name) + " ends beyond the " + std::to_string(block.shared) +
                 " bytes of shared memory asked for");
        }
        Part &part = parts[block.rank];
        if (part.serial == block.serial) {
            return;
        }
        part.serial = block.serial;
        const bool on_kib = (offset < 0 ? alignment : unsigned(offset)) % KIB == 0;
        part.array = Array{name, N, nullptr, part.history, on_kib, sizeof part};
        memset(part.data, 0xff, sizeof part.data);
        std::fill(part.history, part.history + N, History());
    }

    Cell<T> operator[](int64_t index) const
    {
        const Part &part = parts[block.rank];
        part.array.check_bounds(index);
        return Cell<T>{&part.array, const_cast<T *>(part.data), index};
    }

    Sited<Shared> operator()(Site site) const { return {this, site}; }
};

}  // namespace simulator
