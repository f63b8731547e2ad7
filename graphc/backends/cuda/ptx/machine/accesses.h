// Loads, stores, atomic operations, and asynchronous copies.

#define SPACE aux[0]
#define BYTES aux[1]
#define REGISTER aux[2]
#define SIGNED aux[3]
#define OFFSET aux[4]
#define ADDRESS aux[5]
#define READ_ONLY aux[6]

#define EACH_LANE(mask) for (int l = 0; l < LANES; ++l) if ((mask) >> l & 1 && (w->lane = l, 1))

static void *lanes(const Warp *w, const Operand *o) { return w->file + o->place; }
static uint32_t word(const Warp *w, const Operand *o, int lane)
{ return ((const uint32_t *)lanes(w, o))[lane]; }

static uint64_t address_of(const Warp *w, const Operand *o, const Instruction *i, int lane)
{
    const void *found = lanes(w, o);
    if (i->ADDRESS == 4) return ((const uint32_t *)found)[lane] + (uint32_t)i->OFFSET;
    return ((const uint64_t *)found)[lane] + i->OFFSET;
}

// An element of memory as the value of a lane of a register that is at least as wide.
static void set_lane(void *to, int lane, int width, const uint8_t *from, int bytes, int is_signed)
{
    uint64_t value = 0;
    memcpy(&value, from, bytes);
    if (is_signed && bytes < 8) {
        const int shift = 64 - 8 * bytes;
        value = (uint64_t)((int64_t)(value << shift) >> shift);
    }
    memcpy((uint8_t *)to + (int64_t)lane * width, &value, width);
}

// A vector of which some elements are not there, or were never written, since a compiler has joined
// loads: it may, as nothing else can lie in memory that a vector is aligned to. These are undefined.
static void load_part(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint64_t address)
{
    for (int n = 0; n < i->results; ++n, address += i->BYTES) {
        if (!is_readable(m, address, i->BYTES)) { w->lost[n] |= 1u << w->lane; continue; }
        const uint8_t *from = located(m, w, i->SPACE, address, i->BYTES, READ, NULL, i->READ_ONLY);
        set_lane(lanes(w, o + n), w->lane, i->REGISTER, from, i->BYTES, i->SIGNED);
    }
}

static void load(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const int size = i->BYTES * i->results;
    memset(w->lost, 0, sizeof w->lost);
    EACH_LANE(mask) {
        const uint64_t address = address_of(w, o + i->results, i, l);
        if (i->results > 1 && i->SPACE == GLOBAL && address % size == 0
            && !is_readable(m, address, size) && is_readable(m, address, i->BYTES)) {
            load_part(m, w, i, o, address);
            continue;
        }
        const uint8_t *from = located(m, w, i->SPACE, address, size, READ, NULL, i->READ_ONLY);
        for (int n = 0; n < i->results; ++n)
            set_lane(lanes(w, o + n), l, i->REGISTER, from + n * i->BYTES, i->BYTES, i->SIGNED);
    }
}

static void store(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const int count = i->count - 1, size = i->BYTES * count;
    EACH_LANE(mask) {
        uint8_t value[32];
        for (int n = 0; n < count; ++n)
            memcpy(value + n * i->BYTES,
                   (uint8_t *)lanes(w, o + 1 + n) + (int64_t)l * i->REGISTER, i->BYTES);
        memcpy(located(m, w, i->SPACE, address_of(w, o, i, l), size, WRITE, value, 0), value, size);
    }
}

static void load_parameter(Machine *m, Warp *w, const Instruction *i, const Operand *o,
                           uint32_t mask)
{
    EACH_LANE(mask)
        for (int n = 0; n < i->results; ++n)
            set_lane(lanes(w, o + n), l, i->REGISTER,
                     m->launch->params + i->OFFSET + n * i->BYTES, i->BYTES, i->SIGNED);
}

enum { ADD, MIN, MAX, AND, OR, XOR, EXCHANGE, COMPARE, INCREMENT, DECREMENT };
enum { U32, S32, U64, S64, F32, F64 };

#define ATOMIC_OF(NAME, T, INTEGERS) \
    static void NAME(uint8_t *place, uint8_t *given, uint8_t *other, int how) \
    { \
        T old, x, y, found; \
        memcpy(&old, place, sizeof old), memcpy(&x, given, sizeof x), memcpy(&y, other, sizeof y); \
        switch (how) { \
        case ADD: found = old + x; break; \
        case MIN: found = x < old ? x : old; break; \
        case MAX: found = x > old ? x : old; break; \
        case EXCHANGE: found = x; break; \
        case COMPARE: found = old == x ? y : old; break; \
        INTEGERS \
        default: found = old; \
        } \
        memcpy(place, &found, sizeof found); \
    }
#define BITWISE \
    case AND: found = old & x; break; \
    case OR: found = old | x; break; \
    case XOR: found = old ^ x; break; \
    case INCREMENT: found = old >= x ? 0 : old + 1; break; \
    case DECREMENT: found = old == 0 || old > x ? x : old - 1; break;
ATOMIC_OF(atomic_u32, uint32_t, BITWISE)
ATOMIC_OF(atomic_s32, int32_t, BITWISE)
ATOMIC_OF(atomic_u64, uint64_t, BITWISE)
ATOMIC_OF(atomic_s64, int64_t, BITWISE)
ATOMIC_OF(atomic_f32, float, )
ATOMIC_OF(atomic_f64, double, )

static void atomic(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    static void (*const kinds[])(uint8_t *, uint8_t *, uint8_t *, int) = {
        atomic_u32, atomic_s32, atomic_u64, atomic_s64, atomic_f32, atomic_f64};
    const Operand *x = o + i->results;
    EACH_LANE(mask) {
        uint8_t given[8], other[8] = {0};
        memcpy(given, (uint8_t *)lanes(w, x + 1) + (int64_t)l * i->BYTES, i->BYTES);
        if (i->aux[7] == COMPARE)
            memcpy(other, (uint8_t *)lanes(w, x + 2) + (int64_t)l * i->BYTES, i->BYTES);
        uint8_t *place = located(m, w, i->SPACE, address_of(w, x, i, l), i->BYTES, ATOMICALLY, NULL, 0);
        if (i->results) memcpy((uint8_t *)lanes(w, o) + (int64_t)l * i->BYTES, place, i->BYTES);
        kinds[i->aux[3]](place, given, other, i->aux[7]);
    }
}

// cp.async: the bytes arrive when their group is waited for, not before.
static void copy(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const int size = i->BYTES;
    EACH_LANE(mask) {
        const uint64_t to = word(w, o, l) + (uint32_t)i->OFFSET;
        const uint64_t from = ((const uint64_t *)lanes(w, o + 1))[l] + i->aux[3];
        const uint32_t got = i->count > 2 ? word(w, o + 2, l) : (uint32_t)size;
        if (got > (uint32_t)size)
            failed(m, w, "cp.async of %d bytes is asked for %u of them", size, got);
        if (to & (size - 1) || (from & (size - 1)))
            failed(m, w, "cp.async of %d bytes goes from %#llx to %#llx: both must be aligned", size,
                   (unsigned long long)from, (unsigned long long)to);
        w->copies = grown(m, w->copies, w->copy_count, &w->copy_room, sizeof(Copy));
        Copy *made = &w->copies[w->copy_count];
        memset(made->data, 0, sizeof made->data);
        if (got) memcpy(made->data, located(m, w, GLOBAL, from, got, READ, NULL, 0), got);
        const uint64_t place = in_shared(m, w, to, size, WRITE, NULL) - m->shared;
        const int shift = m->launch->shared_shift;
        for (uint64_t n = place >> shift; n <= (place + size - 1) >> shift; ++n)
            m->writer[n] = PENDING;
        made->lane = l, made->place = place, made->size = size, made->group = w->groups[l];
        made->arrival = 0;
        ++w->copy_count;
    }
}

// Ends a copy that its lane has made at such a time.
static void end_copy(Machine *m, Warp *w, const Copy *c, uint32_t time)
{
    memcpy(m->shared + c->place, c->data, c->size);
    const int thread = w->id * LANES + c->lane, shift = m->launch->shared_shift;
    for (uint64_t p = c->place >> shift; p <= (c->place + c->size - 1) >> shift; ++p) {
        m->writer[p] = time << THREAD_BITS | thread;
        m->fences[p] = m->fence_counts[thread];
    }
}

// Ends the copies of some lanes that belong to all but so many groups; all of them, if it is -1.
static void finish_copies(Machine *m, Warp *w, uint32_t mask, int64_t left)
{
    int64_t kept = 0;
    for (int64_t n = 0; n < w->copy_count; ++n) {
        const Copy *c = &w->copies[n];
        const int ends = mask >> c->lane & 1
            && (left < 0 || (int64_t)c->group < (int64_t)w->groups[c->lane] - left);
        if (ends) end_copy(m, w, c, w->time);
        else w->copies[kept++] = *c;
    }
    w->copy_count = kept;
}

// ldmatrix: row n of matrix k is named by lane 8 k + n. stmatrix goes the other way.
static void move_matrices(Machine *m, Warp *w, const Instruction *i, const Operand *o, int stores)
{
    const int matrices = stores ? i->count - 1 : i->results, across = i->aux[1];
    const Operand *registers = stores ? o + 1 : o, *address = stores ? o : o + i->results;
    for (int k = 0; k < matrices; ++k) {
        uint16_t rows[8][8];
        for (int n = 0; n < 8; ++n) {
            w->lane = 8 * k + n;
            const uint64_t place = address_of(w, address, i, w->lane);
            if (place & 15)
                failed(m, w, "a row of a matrix at %llu is not at a multiple of 16",
                       (unsigned long long)place);
            if (stores) {
                for (int e = 0; e < 8; ++e) {
                    const int row = across ? e : n, column = across ? n : e;
                    const uint32_t pair = word(w, registers + k, 4 * row + column / 2);
                    rows[n][e] = column & 1 ? pair >> 16 : pair;
                }
                memcpy(located(m, w, i->SPACE, place, 16, WRITE, (uint8_t *)rows[n], 0), rows[n], 16);
            } else memcpy(rows[n], located(m, w, i->SPACE, place, 16, READ, NULL, 0), 16);
        }
        if (stores) continue;
        uint32_t *to = lanes(w, registers + k);
        for (int l = 0; l < LANES; ++l) {
            const int g = l >> 2, q = 2 * (l & 3);
            const uint32_t low = across ? rows[q][g] : rows[g][q];
            const uint32_t high = across ? rows[q + 1][g] : rows[g][q + 1];
            to[l] = low | high << 16;
        }
    }
}
