// The instructions of instructions.py: vectors, copies, and products of matrices by warps.

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
    copy.history->write_epoch = block.epoch();
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

static inline void round_tf32(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3)
{
    for (uint32_t *word : {&r0, &r1, &r2, &r3}) {
        *word += (*word & 0x7f800000u) == 0x7f800000u ? 0u : 0x1000u;
    }
}

static inline void power_of_two(float &to, float x)
{
    to = std::exp2(x);
    to = to < 0x1p-126f ? 0.0f : to;
}

static inline void keep_largest(const simulator::Cell<int32_t> &to, int32_t x)
{
    atomicMax(&to, x);
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
