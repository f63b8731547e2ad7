// Counts, of every instruction, how often warps do it, and what its accesses cost: sectors of 32
// bytes of global memory, those of them that the block touches for the first time, and wavefronts of
// shared memory (simulator/profile.py says by which rules), and the fewest there could be.

enum { SECTOR = 32, WORD = 4, BANKS = 32 };

typedef struct { int64_t executions, sectors, first_sectors, wavefronts, least_wavefronts; } Count;

// A set of sectors: open addressing, at most half full; 0 is no sector, as no region starts there.
typedef struct Sectors { uint64_t *entries; int64_t used, room; } Sectors;

static int is_added(Machine *m, Sectors *set, uint64_t sector)
{
    if (2 * set->used >= set->room) {
        Sectors larger = {calloc(set->room ? 4 * set->room : 1024, 8), 0,
                          set->room ? 4 * set->room : 1024};
        if (larger.entries == NULL) failed(m, NULL, "the machine has no memory left");
        for (int64_t n = 0; n < set->room; ++n)
            if (set->entries[n]) is_added(m, &larger, set->entries[n]);
        free(set->entries);
        *set = larger;
    }
    int64_t at = (sector * 0x9e3779b97f4a7c15u >> 20) & (set->room - 1);
    for (; set->entries[at]; at = (at + 1) & (set->room - 1))
        if (set->entries[at] == sector) return 0;
    set->entries[at] = sector, ++set->used;
    return 1;
}

// Numbers in order, each once; how many are left.
static int unique(uint64_t *numbers, int count)
{
    int kept = 0;
    for (int n = 1; n < count; ++n) {
        const uint64_t x = numbers[n];
        int at = n;
        for (; at > 0 && numbers[at - 1] > x; --at) numbers[at] = numbers[at - 1];
        numbers[at] = x;
    }
    for (int n = 0; n < count; ++n)
        if (n == 0 || numbers[n] != numbers[kept - 1]) numbers[kept++] = numbers[n];
    return kept;
}

static void count_sectors(Machine *m, Count *c, const uint64_t *at, uint32_t mask, int size)
{
    uint64_t sectors[2 * LANES];
    int count = 0;
    for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1)
            for (uint64_t s = at[l] / SECTOR; s <= (at[l] + size - 1) / SECTOR; ++s)
                if (count < 2 * LANES) sectors[count++] = s;
    count = unique(sectors, count);
    c->sectors += count;
    for (int n = 0; n < count; ++n) c->first_sectors += is_added(m, m->touched, sectors[n]);
}

// Lanes that take 8 or 16 bytes are served by halves or quarters of the warp; of loads by twice as
// many where neighbours, or lanes that are two apart, take the same.
static void count_wavefronts(Count *c, const uint64_t *at, uint32_t mask, int size, int pairs)
{
    int together = LANES / (size > WORD ? size / WORD : 1);
    for (int other = 1; pairs && other <= 2; ++other) {
        int same = 1;
        for (int l = 0; l < LANES; ++l)
            same &= !(mask >> l & mask >> (l ^ other) & 1) || at[l] == at[l ^ other];
        if (same) { together = together < LANES ? 2 * together : LANES; break; }
    }
    for (int first = 0; first < LANES; first += together) {
        uint64_t words[4 * LANES];
        int count = 0, most = 0, of_bank[BANKS] = {0};
        for (int l = first; l < first + together; ++l)
            if (mask >> l & 1)
                for (uint64_t word = at[l] / WORD; word <= (at[l] + size - 1) / WORD; ++word)
                    if (count < 4 * LANES) words[count++] = word;
        count = unique(words, count);
        for (int n = 0; n < count; ++n)
            if (++of_bank[words[n] % BANKS] > most) most = of_bank[words[n] % BANKS];
        c->wavefronts += most;
        c->least_wavefronts += (count + BANKS - 1) / BANKS;
    }
}

static void count_access(Machine *m, Count *c, int space, uint64_t *at, uint32_t mask, int size,
                         int pairs)
{
    const uint64_t window = mask ? at[__builtin_ctz(mask)] >> 40 << 40 : 0;
    if (space == GENERIC) space = window == SHARED_WINDOW ? SHARED : window == LOCAL_WINDOW ? LOCAL : GLOBAL;
    if (space == GLOBAL) count_sectors(m, c, at, mask, size);
    else if (space == SHARED) count_wavefronts(c, at, mask, size, pairs);
}

// Counts an instruction that lanes of a warp are about to do.
static void count(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    Count *c = (Count *)m->launch->counts + (i - m->launch->code);
    uint64_t at[LANES];
    ++c->executions;
    if (i->op == LOAD || i->op == STORE || i->op == ATOMIC_OPERATION) {
        const int parts = i->op == LOAD ? i->results : i->op == STORE ? i->count - 1 : 1;
        for (int l = 0; l < LANES; ++l) at[l] = address_of(w, o + i->results, i, l);
        count_access(m, c, i->SPACE, at, mask, i->BYTES * parts, i->op == LOAD);
    } else if (i->op == LOAD_MATRICES || i->op == STORE_MATRICES) {
        const int stores = i->op == STORE_MATRICES, matrices = stores ? i->count - 1 : i->results;
        for (int l = 0; l < LANES; ++l) at[l] = address_of(w, o + (stores ? 0 : i->results), i, l);
        count_wavefronts(c, at, mask & (uint32_t)((1ull << 8 * matrices) - 1), 16, 0);
    } else if (i->op == COPY) {
        uint32_t gets = 0;
        for (int l = 0; l < LANES; ++l) {
            at[l] = ((const uint64_t *)lanes(w, o + 1))[l] + i->aux[3];
            gets |= (uint32_t)(i->count < 3 || word(w, o + 2, l) > 0) << l;
        }
        count_access(m, c, GLOBAL, at, mask & gets, i->BYTES, 0);
        for (int l = 0; l < LANES; ++l) at[l] = word(w, o, l) + (uint32_t)i->OFFSET;
        count_wavefronts(c, at, mask, i->BYTES, 0);
    } else if (i->op == BULK_COPY || i->op == BULK_TENSOR) {
        EACH_LANE(mask) {
            const TensorMap *map = i->op == BULK_TENSOR ? map_at(m, w, wide(w, o + 1, l)) : NULL;
            int64_t size = map ? map->bytes : word(w, o + 2, l);
            for (int d = 0; map && d < map->rank; ++d) size *= map->box[d];
            c->sectors += size / SECTOR;
        }
    }
}

// A warp that waits executes the instruction again, which counts once.
static void uncount(Machine *m, const Instruction *i)
{
    if (m->launch->counts) --((Count *)m->launch->counts + (i - m->launch->code))->executions;
}

// Forgets which sectors were touched, before a block starts.
static void forget_sectors(Machine *m)
{
    if (m->touched->used) memset(m->touched->entries, 0, 8 * m->touched->room);
    m->touched->used = 0;
}
