// Copies in bulk, by the asynchronous proxy: cp.async.bulk, and cp.async.bulk.tensor, which takes a
// box of a tensor that a map describes (TMA).
//
// Bytes that are brought to shared memory are there once an mbarrier has counted them, which is as
// late as can be here: when no warp can go on. Bytes that leave shared memory are read until their
// group is waited for.

#define STORES aux[0]
#define RANK aux[1]
#define MULTICAST aux[2]

// As tensor_maps.py packs it; on a GPU the 128 bytes are what the driver makes of the same.
typedef struct {
    uint64_t address, strides[MOST_RANK - 1];
    uint32_t dims[MOST_RANK], box[MOST_RANK];
    uint8_t magic[4], rank, bytes, swizzle, fill;
} TensorMap;

static void drop_bulk(Bulk *b) { free(b->data), free(b->places), free(b->targets); }
static void drop_bulks(Machine *m)
{
    for (int64_t n = 0; n < m->bulk_count; ++n) drop_bulk(&m->bulks[n]);
    m->bulk_count = 0;
}

static Bulk *new_bulk(Machine *m, Warp *w, int64_t size, int64_t chunk)
{
    m->bulks = grown(m, m->bulks, m->bulk_count, &m->bulk_room, sizeof(Bulk));
    Bulk *b = &m->bulks[m->bulk_count++];
    memset(b, 0, sizeof *b);
    b->size = size, b->chunks = size / chunk, b->warp = w, b->lane = w->lane;
    b->data = calloc(size, 1), b->places = calloc(b->chunks, 8), b->targets = calloc(b->chunks, 8);
    if (!b->data || !b->places || !b->targets) failed(m, w, "the machine has no memory left");
    return b;
}

// That a copy may write a chunk: nobody uses it, and what was written there is fenced.
static void start_write(Machine *m, Warp *w, uint64_t place)
{
    char who[40];
    const int shift = m->launch->shared_shift, thread = w->id * LANES + w->lane;
    const uint64_t own = place % m->stride;
    for (uint64_t n = place >> shift; n <= (place + CHUNK - 1) >> shift; ++n) {
        const uint32_t tag = m->writer[n], by = tag & ((1 << THREAD_BITS) - 1);
        if (m->async_reads[n])
            failed(m, w, "a copy in bulk overwrites shared memory at %llu while products or copies "
                   "on their way read it", (unsigned long long)own);
        if (tag == PENDING)
            failed(m, w, "a copy in bulk overwrites shared memory at %llu, to which another copy is on "
                   "its way", (unsigned long long)own);
        if (tag == OBJECT)
            failed(m, w, "a copy in bulk overwrites the mbarrier at %llu", (unsigned long long)own);
        if (!is_ordered(m, w, tag, thread))
            failed(m, w, "race: a copy in bulk overwrites shared memory at %llu, which %s has written "
                   "without a barrier between", (unsigned long long)own, told(who, m, tag));
        check_overwritten(m, w, "shared", own, m->reader + n, m->readers + n * ROW, 1, thread);
        if (by < MOST_THREADS && tag >> THREAD_BITS >= m->block_first) check_fenced(m, w, n, own);
        m->writer[n] = PENDING;
    }
}

static void check_init_fenced(Machine *m, Warp *w, const Phases *p)
{
    if (!p->is_fenced)
        failed(m, w, "a copy in bulk counts at an mbarrier whose init was not fenced for the "
               "asynchronous proxy (fence.mbarrier_init, fence.proxy.async)");
}

static const TensorMap *map_at(Machine *m, Warp *w, uint64_t address)
{
    const uint64_t window = address >> 40 << 40;
    if (address & 63) failed(m, w, "the tensor map at %#llx is not at a multiple of 64", (unsigned long long)address);
    const TensorMap *map;
    if (window == PARAM_WINDOW) {
        const uint64_t start = address - window;
        if (start + 128 > (uint64_t)m->launch->param_bytes)
            failed(m, w, "a tensor map lies beyond the parameters");
        map = (const TensorMap *)(m->launch->params + start);
    } else map = (const TensorMap *)in_global(m, w, address, 128, READ, NULL, 1);
    if (memcmp(map->magic, "TMAP", 4)) failed(m, w, "there is no tensor map at %#llx", (unsigned long long)address);
    return map;
}

static uint64_t swizzled(uint64_t place, int mode)
{
    const int rows = mode == SWIZZLE_128 ? 7 : mode == SWIZZLE_64 ? 3 : mode == SWIZZLE_32 ? 1 : 0;
    return place ^ (place >> 7 & rows) << 4;
}

// Where the chunks of a box lie in global memory (~0: outside of the tensor, or in part), and in
// shared memory from `to` on.
static void place_box(Machine *m, Warp *w, Bulk *b, const TensorMap *map, const Operand *at,
                      uint64_t to)
{
    const int64_t line = (int64_t)map->box[0] * map->bytes, chunks = line / CHUNK;
    for (int64_t n = 0; n < b->chunks; ++n) {
        int64_t row = n / chunks;
        const int64_t first = (int32_t)word(w, at, w->lane) + n % chunks * CHUNK / map->bytes;
        uint64_t from = map->address + first * map->bytes;
        int inside = first >= 0 && first < map->dims[0];
        for (int d = 1; d < map->rank; ++d) {
            const int64_t c = (int32_t)word(w, at + d, w->lane) + row % map->box[d];
            row /= map->box[d];
            inside &= c >= 0 && c < map->dims[d];
            from += c * map->strides[d - 1];
        }
        b->places[n] = swizzled(to + n * CHUNK, map->swizzle);
        b->targets[n] = inside ? from : ~0ull;
    }
}

// Bytes of a chunk that are inside of the tensor: the innermost extent may end within it.
static int64_t inside_of(Warp *w, const TensorMap *map, const Operand *at, int64_t n)
{
    const int64_t chunks = (int64_t)map->box[0] * map->bytes / CHUNK;
    const int64_t first = (int32_t)word(w, at, w->lane) + n % chunks * CHUNK / map->bytes;
    const int64_t left = ((int64_t)map->dims[0] - first) * map->bytes;
    return left < CHUNK ? left : CHUNK;
}

static void check_box(Machine *m, Warp *w, const Instruction *i, const TensorMap *map,
                      const Operand *at, uint64_t to)
{
    const int align = map->swizzle == NO_SWIZZLE ? 128 : 256 << (map->swizzle == SWIZZLE_128 ? 2
                      : map->swizzle == SWIZZLE_64 ? 1 : 0);
    if (map->rank != i->RANK)
        failed(m, w, "a tensor map of %d dimensions is used for a copy of %d", map->rank, i->RANK);
    if (to % align)
        failed(m, w, "a box is copied from or to %llu: it must be a multiple of %d",
               (unsigned long long)to, align);
    if ((int64_t)(int32_t)word(w, at, w->lane) * map->bytes % CHUNK)
        failed(m, w, "the innermost coordinate %d of a box is not at a multiple of 16 bytes, which the "
               "machine does not know", (int32_t)word(w, at, w->lane));
}

static void bring(Machine *m, Warp *w, Bulk *b, const TensorMap *map, const Operand *at)
{
    for (int64_t n = 0; n < b->chunks; ++n) {
        if (b->targets[n] == ~0ull) continue;
        const int64_t bytes = map ? inside_of(w, map, at, n) : CHUNK;
        memcpy(b->data + n * CHUNK, in_global(m, w, b->targets[n], bytes, READ, NULL, 0), bytes);
    }
}

// Into the shared memory of one block of the cluster; `shift` moves to that of another.
static void start_bring(Machine *m, Warp *w, const Bulk *b, uint64_t barrier, int64_t shift)
{
    Phases *p = phases_at(m, w, barrier);
    check_init_fenced(m, w, p);
    Bulk *other = new_bulk(m, w, b->size, CHUNK);
    other->phase = (int)(p - m->phases);
    memcpy(other->data, b->data, b->size);
    for (int64_t n = 0; n < b->chunks; ++n) {
        other->places[n] = b->places[n] + shift;
        start_write(m, w, other->places[n]);
    }
}

static void start_reads(Machine *m, Warp *w, Bulk *b)
{
    for (int64_t n = 0; n < b->chunks; ++n) start_read(m, w, b->places[n]);
    b->is_store = 1, b->group = w->bulk_groups[w->lane];
}

static void start_bulk(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    // operands: shared memory, global memory or a map, coordinates, then the mbarrier, mask; or size
    const int is_tensor = i->op == BULK_TENSOR;
    EACH_LANE(mask) {
        const uint64_t to = wide(w, o, l), far = wide(w, o + 1, l);
        const Operand *at = o + 2, *rest = at + (is_tensor ? i->RANK : 1);
        const TensorMap *map = is_tensor ? map_at(m, w, far) : NULL;
        int64_t size = 1;
        if (map) {
            for (int d = 0; d < map->rank; ++d) size *= map->box[d];
            size *= map->bytes;
            check_box(m, w, i, map, at, to);
        } else size = word(w, at, l);
        if (size <= 0 || size % CHUNK || to % CHUNK || (!map && far % CHUNK))
            failed(m, w, "a copy in bulk of %lld bytes between %#llx and %#llx: all must be multiples of "
                   "16", (long long)size, (unsigned long long)to, (unsigned long long)far);
        const int64_t own = shared_place(m, w, to, size);
        Bulk *b = new_bulk(m, w, size, CHUNK);
        if (map) place_box(m, w, b, map, at, own);
        else for (int64_t n = 0; n < b->chunks; ++n) {
            b->places[n] = own + n * CHUNK;
            b->targets[n] = far + n * CHUNK;
        }
        if (i->STORES) {
            start_reads(m, w, b);
            for (int64_t n = 0; map && n < b->chunks; ++n)
                if (b->targets[n] != ~0ull && inside_of(w, map, at, n) < CHUNK)
                    failed(m, w, "a box is stored whose last 16 bytes lie across the end of the tensor, "
                           "which the machine does not know");
            continue;
        }
        bring(m, w, b, map, at);
        const Bulk kept = *b;
        --m->bulk_count;
        const uint64_t barrier = wide(w, rest, l);
        if (!i->MULTICAST) start_bring(m, w, &kept, barrier, 0);
        const uint32_t blocks = i->MULTICAST ? word(w, rest + 1, l) & 0xffff : 0;
        if (i->MULTICAST && (blocks == 0 || blocks >> m->blocks))
            failed(m, w, "a copy goes to blocks %#x of a cluster of %d", blocks, m->blocks);
        for (int rank = 0; rank < m->blocks; ++rank)
            if (blocks >> rank & 1)
                start_bring(m, w, &kept, (uint64_t)(rank + 1) << BLOCK_SHIFT | (barrier & ((1 << BLOCK_SHIFT) - 1)),
                            (rank - own / m->stride) * m->stride);
        Bulk done = kept;
        drop_bulk(&done);
    }
}

// Ends one copy into shared memory, if there is any; whether there was.
static int deliver(Machine *m)
{
    int64_t chosen = -1;
    for (int64_t n = 0; n < m->bulk_count; ++n)
        if (!m->bulks[n].is_store && (chosen < 0 || m->launch->order & 1)) chosen = n;
    if (chosen < 0) return 0;
    const Bulk b = m->bulks[chosen];
    memmove(m->bulks + chosen, m->bulks + chosen + 1, (m->bulk_count - chosen - 1) * sizeof b);
    --m->bulk_count;
    Phases *p = &m->phases[b.phase];
    const uint32_t tag = tick(m) << THREAD_BITS | (BY_COPIES + b.phase);
    const int shift = m->launch->shared_shift;
    for (int64_t n = 0; n < b.chunks; ++n) {
        memcpy(m->shared + b.places[n], b.data + n * CHUNK, CHUNK);
        for (uint64_t s = b.places[n] >> shift; s <= (b.places[n] + CHUNK - 1) >> shift; ++s)
            m->writer[s] = tag;
    }
    Bulk done = b;
    drop_bulk(&done);
    if (!p->is_live) failed(m, b.warp, "a copy in bulk counts at an mbarrier that is no longer valid");
    if (b.size > p->bytes)
        failed(m, b.warp, "a copy in bulk brings %lld bytes to the mbarrier at %llu, which expects %lld "
               "(mbarrier.expect_tx)", (long long)b.size, (unsigned long long)(p->place % m->stride),
               (long long)p->bytes);
    p->bytes -= b.size, ++m->moves;
    end_phase_if_complete(m, p);
    return 1;
}

// Ends the copies out of shared memory of some lanes that belong to all but so many groups.
static void finish_stores(Machine *m, Warp *w, uint32_t mask, int64_t left)
{
    int64_t kept = 0;
    for (int64_t k = 0; k < m->bulk_count; ++k) {
        Bulk b = m->bulks[k];
        if (!b.is_store || b.warp != w || !(mask >> b.lane & 1)
            || (int64_t)b.group >= (int64_t)w->bulk_groups[b.lane] - left) {
            m->bulks[kept++] = b;
            continue;
        }
        w->lane = b.lane;
        for (int64_t n = 0; n < b.chunks; ++n) {
            end_read(m, w, b.places[n]);
            if (b.targets[n] == ~0ull) continue;
            const uint8_t *from = m->shared + b.places[n];
            memcpy(in_global(m, w, b.targets[n], CHUNK, WRITE, from, 0), from, CHUNK);
        }
        drop_bulk(&b);
    }
    m->bulk_count = kept;
}

static void check_bulks_done(Machine *m, Warp *w, uint32_t mask)
{
    for (int64_t n = 0; n < m->bulk_count; ++n)
        if (m->bulks[n].warp == w && mask >> m->bulks[n].lane & 1 && m->bulks[n].is_store)
            failed(m, w, "the thread ends before the copies that it asked for have read shared memory "
                   "(cp.async.bulk.wait_group)");
}

// The last warp of a block must not end before copies into its shared memory have come.
static void check_bulks_come(Machine *m, Warp *w)
{
    for (int64_t n = 0; n < m->bulk_count; ++n)
        if (!m->bulks[n].is_store)
            failed(m, w, "the kernel ends while copies in bulk are on their way");
    if (m->arrival_count)
        failed(m, w, "the kernel ends while copies are on their way that arrive at an mbarrier");
}
