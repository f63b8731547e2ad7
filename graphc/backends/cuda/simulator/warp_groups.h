// The instructions of warpgroup_instructions.py: products that go on while threads do.

static inline void share_copies() { simulator::current().unshared = false; }

static inline void begin_products() { simulator::current().begun = true; }

static inline void commit_products() { ++simulator::current().product_batch; }

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
    simulator::meet(0xffffffffu, false);  // products are those of a warp: done for all lanes
}

namespace simulator {

static void take_sums()
{
    if (!current().products.empty()) {
        fail("sums of products that have not been waited for");
    }
    current().begun = false;  // they may be written from here on
}

// An operand of a warp group's product: eight lines after eight, 128 bytes each, from the first
// word on, and `across` bytes from one 64 positions to the next.
struct Rows {
    Cell<uint32_t> first;
    int64_t across;

    Rows(const Cell<uint32_t> &start, int64_t across, int64_t further = 0)
        : first(start), across(across)
    {
        first.index += further / 4;
        if (!first.array->on_kib) {
            fail("operand of a warp group that does not start at a whole KiB");
        }
    }

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

// The rows of a warp in the registers of its lanes, which are read when products are done.
struct Held {
    const uint32_t *words[4][4];  // of the four lanes that share this one's rows

    uint32_t word(unsigned position, unsigned deep) const
    {
        return *words[deep % 4][deep / 4 * 2 + position / 8 % 2];
    }
};

static Held held_by_lanes(const uint32_t *const (&mine)[4])
{
    Exchange &exchange = current().exchange;
    const unsigned turn = exchange.turn;
    exchange.turn ^= 1u;
    std::copy(std::begin(mine), std::end(mine), exchange.held[turn]);
    meet(0xffffffffu, false);
    Held found;
    for (unsigned quad = 0; quad < 4; ++quad) {
        const Thread &other = block.threads[thread_number() / 4 * 4 + quad];
        std::copy_n(other.exchange.held[turn], 4, found.words[quad]);
    }
    return found;
}

template <typename S, typename W, typename A>
static void add_products(W (*products)(uint32_t, uint32_t), S *sums, const A &a, const Rows &b,
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
template <typename S, typename W, typename A>
static void begin(W (*products)(uint32_t, uint32_t), S *sums, const A &a, const Rows &b,
                  unsigned columns)
{
    if (!current().begun) {
        fail("product of a warp group without begin_products");
    }
    for (const Thread &thread : block.threads) {
        if (thread.unshared && thread.unshared_epoch < block.epoch()) {
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

#define SIMULATED_TAKE(N)                                                                          \
    template <typename S>                                                                          \
    static void take_sums_##N(S &)                                                                 \
    {                                                                                              \
        simulator::take_sums();                                                                    \
    }
SIMULATED_TAKE(16)
SIMULATED_TAKE(32)
SIMULATED_TAKE(64)
SIMULATED_TAKE(128)
#undef SIMULATED_TAKE

#define SIMULATED_GROUP(TYPE, S, N)                                                                \
    template <int ACROSS_A, int ACROSS_B, int FURTHER_A, int FURTHER_B>                            \
    static void wgmma_##TYPE##_n##N(S &sums, const simulator::Cell<uint32_t> &a,                   \
                                    const simulator::Cell<uint32_t> &b)                            \
    {                                                                                              \
        simulator::begin<S>(simulator::products_##TYPE, &sums,                                     \
                            simulator::Rows(a, ACROSS_A, FURTHER_A),                               \
                            simulator::Rows(b, ACROSS_B, FURTHER_B), N);                           \
    }
#define SIMULATED_GROUPS(TYPE, S)                                                                  \
    SIMULATED_GROUP(TYPE, S, 32)                                                                   \
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

#define SIMULATED_HELD(N)                                                                          \
    static void wgmma_tf32_held_n##N(float &sums, const uint32_t &a0, const uint32_t &a1,          \
                                     const uint32_t &a2, const uint32_t &a3,                       \
                                     const simulator::Cell<uint32_t> &b)                           \
    {                                                                                              \
        simulator::begin<float>(simulator::products_tf32, &sums,                                   \
                                simulator::held_by_lanes({&a0, &a1, &a2, &a3}),                    \
                                simulator::Rows(b, 0), N);                                         \
    }
SIMULATED_HELD(32)
SIMULATED_HELD(64)
SIMULATED_HELD(128)
SIMULATED_HELD(256)
#undef SIMULATED_HELD

#define SIMULATED_HELD(TYPE, N)                                                                    \
    template <int ACROSS, int FURTHER>                                                             \
    static void wgmma_##TYPE##_held_n##N(float &sums, const uint32_t &a0, const uint32_t &a1,      \
                                         const uint32_t &a2, const uint32_t &a3,                   \
                                         const simulator::Cell<uint32_t> &b)                       \
    {                                                                                              \
        simulator::begin<float>(simulator::products_##TYPE, &sums,                                 \
                                simulator::held_by_lanes({&a0, &a1, &a2, &a3}),                    \
                                simulator::Rows(b, ACROSS, FURTHER), N);                           \
    }
SIMULATED_HELD(f16, 32)
SIMULATED_HELD(f16, 64)
SIMULATED_HELD(f16, 128)
SIMULATED_HELD(f16, 256)
SIMULATED_HELD(bf16, 32)
SIMULATED_HELD(bf16, 64)
SIMULATED_HELD(bf16, 128)
SIMULATED_HELD(bf16, 256)
#undef SIMULATED_HELD
