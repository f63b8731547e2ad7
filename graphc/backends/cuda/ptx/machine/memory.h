// Accesses to memory: bounds, alignment, what was never written, and races.

enum { GENERIC, GLOBAL, SHARED, LOCAL };
enum { ROW = 2 * MOST_WARPS };  // times of readers of a piece
typedef enum { READ, WRITE, ATOMICALLY } Access;
static const char *const SPACES[] = {"generic", "global", "shared", "local"};

// Whether all of several readers of a piece came before what a warp does now.
static int are_ordered(const Machine *m, const Warp *w, const uint32_t *row)
{
    for (int u = 0; u < m->warps; ++u) {
        const int is_own = u == w->id;
        if (row[u] >= m->block_first && row[u] >= w->seen[u] && !(is_own && w->is_synced)) return 0;
        if (row[MOST_WARPS + u] >= m->block_first && row[MOST_WARPS + u] >= w->seen[MOST_WARPS + u]
            && !is_own) return 0;
    }
    return 1;
}

// A read or write of pieces that have these marks; `rows` are those of shared memory.
static void mark_read(Machine *m, Warp *w, const char *space, uint64_t place, uint32_t *writer,
                      uint32_t *reader, uint32_t *rows, int64_t pieces, int thread)
{
    char who[40];
    const uint32_t mine = tag_of(w, thread), mask = (1 << THREAD_BITS) - 1;
    const uint32_t old = m->launch_first << THREAD_BITS;
    for (int64_t n = 0; n < pieces; ++n) {
        const uint32_t tag = writer[n];
        if (tag >= old && tag != mine && !is_ordered(m, w, tag, thread)) {
            if (tag == PENDING)
                failed(m, w, "%s memory at %llu is read before its asynchronous copy is waited for",
                       space, (unsigned long long)place);
            if (tag == OBJECT)
                failed(m, w, "%s memory at %llu is read, where an mbarrier is", space,
                       (unsigned long long)place);
            failed(m, w, "race: %s memory at %llu is read, which %s has written without a barrier "
                   "between", space, (unsigned long long)place, told(who, m, tag));
        }
        const uint32_t read = reader[n];
        if (read < old || read == mine) { reader[n] = mine; continue; }
        if (read >> THREAD_BITS < m->block_first || (read & mask) == BLOCKS)
            reader[n] = w->time << THREAD_BITS | BLOCKS;
        else if (is_ordered(m, w, read, thread)) reader[n] = mine;
        else {
            const uint32_t time = read >> THREAD_BITS, own = mine >> THREAD_BITS;
            if (rows) {
                uint32_t *row = rows + n * ROW;
                if ((read & mask) != MANY) {
                    memset(row, 0, ROW * sizeof *row);
                    row[clock_of(read & mask)] = time;
                }
                row[clock_of(thread)] = own;
            }
            reader[n] = (time > own ? time : own) << THREAD_BITS | MANY;
        }
    }
}

static void check_overwritten(Machine *m, Warp *w, const char *space, uint64_t place,
                              const uint32_t *reader, const uint32_t *rows, int64_t pieces,
                              int thread)
{
    char who[40];
    for (int64_t n = 0; n < pieces; ++n)
        if (!is_ordered(m, w, reader[n], thread)
            && !(rows && (reader[n] & ((1 << THREAD_BITS) - 1)) == MANY
                 && are_ordered(m, w, rows + n * ROW)))
            failed(m, w, "race: %s memory at %llu is written, which %s has read without a barrier "
                   "between", space, (unsigned long long)place, told(who, m, reader[n]));
}

static void mark_write(Machine *m, Warp *w, const char *space, uint64_t place, uint32_t *writer,
                       const uint32_t *reader, const uint32_t *rows, int64_t pieces, int thread,
                       int same, Access access)
{
    char who[40];
    const uint32_t mine = tag_of(w, access == ATOMICALLY ? ATOMIC : thread);
    const uint32_t mask = (1 << THREAD_BITS) - 1;
    for (int64_t n = 0; n < pieces; ++n) {
        const uint32_t tag = writer[n];
        if (tag != mine && !is_ordered(m, w, tag, thread)) {
            if (tag == PENDING)
                failed(m, w, "%s memory at %llu is written while an asynchronous copy goes there",
                       space, (unsigned long long)place);
            if (tag == OBJECT)
                failed(m, w, "%s memory at %llu is written, where an mbarrier is", space,
                       (unsigned long long)place);
            const int both = access == ATOMICALLY && (tag & mask) == ATOMIC;
            if (!both && !same)
                failed(m, w, "race: %s memory at %llu is written, as %s has done without a barrier "
                       "between", space, (unsigned long long)place, told(who, m, tag));
        }
    }
    check_overwritten(m, w, space, place, reader, rows, pieces, thread);
    for (int64_t n = 0; n < pieces; ++n) writer[n] = mine;
}

static Region *region_of(Machine *m, Warp *w, uint64_t address, int64_t size)
{
    const uint64_t number = address >> 40;
    if (number == 0 || number > (uint64_t)m->launch->region_count)
        failed(m, w, "global address %#llx is in no buffer", (unsigned long long)address);
    Region *region = &m->launch->regions[number - 1];
    const int64_t start = (int64_t)(address - region->base);
    if (start < 0 || start + size > (int64_t)region->size)
        failed(m, w, "bytes %lld..%lld of parameter %d are accessed, which has %llu",
               (long long)start, (long long)(start + size), (int)number - 1,
               (unsigned long long)region->size);
    return region;
}

// Whether bytes of global memory are there, and written.
static int is_readable(const Machine *m, uint64_t address, int64_t size)
{
    const uint64_t number = address >> 40;
    if (number == 0 || number > (uint64_t)m->launch->region_count) return 0;
    const Region *region = &m->launch->regions[number - 1];
    const int64_t start = (int64_t)(address - region->base);
    if (start < 0 || start + size > (int64_t)region->size) return 0;
    return region->defined == NULL || memchr(region->defined + start, 0, size) == NULL;
}

static uint8_t *in_global(Machine *m, Warp *w, uint64_t address, int64_t size, Access access,
                          const uint8_t *value, int read_only)
{
    Region *region = region_of(m, w, address, size);
    const uint64_t start = address - region->base;
    const int thread = w->id * LANES + w->lane, shift = m->launch->global_shift;
    uint8_t *const host = region->host + start;
    if (access != WRITE && region->defined != NULL)
        for (int64_t n = 0; n < size; ++n)
            if (!region->defined[start + n])
                failed(m, w, "byte %llu of parameter %d is read, which was never written",
                       (unsigned long long)start + n, (int)(address >> 40) - 1);
    if (access != READ && !region->writable)
        failed(m, w, "parameter %d is written, which is only read", (int)(address >> 40) - 1);
    if (region->writer != NULL) {
        const int64_t first = (region->shadow + start) >> shift;
        const int64_t pieces = ((region->shadow + start + size - 1) >> shift) - first + 1;
        uint32_t *const writer = region->writer + first, *const reader = region->reader + first;
        if (read_only && writer[0] >> THREAD_BITS >= m->launch_first)
            failed(m, w, "parameter %d is read by ld.global.nc, but written by the same kernel",
                   (int)(address >> 40) - 1);
        if (access == READ) mark_read(m, w, "global", start, writer, reader, NULL, pieces, thread);
        else {
            const int same = value != NULL && memcmp(host, value, size) == 0;
            mark_write(m, w, "global", start, writer, reader, NULL, pieces, thread, same, access);
        }
    }
    if (access == WRITE && region->defined != NULL) memset(region->defined + start, 1, size);
    return host;
}

enum { BLOCK_SHIFT = 24 };  // of an address in a cluster: the number of a block and one, above

// Shared memory of a block of a cluster is there until its last thread ends.
static void check_block_lives(Machine *m, Warp *w, int rank)
{
    for (int n = rank * m->block_warps; n < (rank + 1) * m->block_warps; ++n)
        if (m->warp[n].state != DONE) return;
    failed(m, w, "shared memory of block %d of the cluster is accessed, which has ended", rank);
}

// Where bytes lie in the shared memories of a cluster, of its own or of a named block.
static uint64_t shared_place(Machine *m, Warp *w, uint64_t address, int64_t size)
{
    const uint64_t block = address >> BLOCK_SHIFT, own = address & ((1 << BLOCK_SHIFT) - 1);
    if (own + size > (uint64_t)m->launch->shared_bytes)
        failed(m, w, "bytes %llu..%llu of shared memory are accessed, which has %lld",
               (unsigned long long)own, (unsigned long long)(own + size),
               (long long)m->launch->shared_bytes);
    if (block > (uint64_t)m->blocks)
        failed(m, w, "shared memory of block %llu of a cluster of %d is accessed",
               (unsigned long long)block - 1, m->blocks);
    if (block && block - 1 != (uint64_t)w->rank) check_block_lives(m, w, (int)block - 1);
    return (block ? block - 1 : w->rank) * m->stride + own;
}

static void check_written(Machine *m, Warp *w, uint64_t address, int64_t first, int64_t pieces)
{
    for (int64_t n = first; n < first + pieces; ++n)
        if (m->writer[n] == 0)
            failed(m, w, "shared memory at %llu is read, which was never written",
                   (unsigned long long)address);
}

static void check_unread(Machine *m, Warp *w, uint64_t address, int64_t first, int64_t pieces)
{
    for (int64_t n = first; n < first + pieces; ++n)
        if (m->async_reads[n])
            failed(m, w, "shared memory at %llu is written while products on their way read it",
                   (unsigned long long)address);
}

static uint8_t *in_shared(Machine *m, Warp *w, uint64_t address, int64_t size, Access access,
                          const uint8_t *value)
{
    const uint64_t at = shared_place(m, w, address, size);
    const int thread = w->id * LANES + w->lane, shift = m->launch->shared_shift;
    const int64_t first = at >> shift;
    const int64_t pieces = ((at + size - 1) >> shift) - first + 1;
    uint32_t *const rows = m->readers + first * ROW;
    if (access != WRITE) check_written(m, w, address, first, pieces);
    if (access == READ)
        mark_read(m, w, "shared", address, m->writer + first, m->reader + first, rows, pieces,
                  thread);
    else {
        check_unread(m, w, address, first, pieces);
        const int same = value != NULL && memcmp(m->shared + at, value, size) == 0;
        mark_write(m, w, "shared", address, m->writer + first, m->reader + first, rows, pieces,
                   thread, same, access);
        for (int64_t n = first; n < first + pieces; ++n) m->fences[n] = m->fence_counts[thread];
    }
    return m->shared + at;
}

static uint8_t *in_local(Machine *m, Warp *w, uint64_t address, int64_t size, Access access)
{
    const int64_t bytes = m->launch->local_bytes;
    if (address + size > (uint64_t)bytes)
        failed(m, w, "bytes %llu..%llu of a thread's local memory are accessed, which has %lld",
               (unsigned long long)address, (unsigned long long)(address + size), (long long)bytes);
    uint8_t *const defined = w->local_defined + w->lane * bytes + address;
    if (access == WRITE) memset(defined, 1, size);
    else if (memchr(defined, 0, size) != NULL)
        failed(m, w, "local memory at %llu is read, which was never written",
               (unsigned long long)address);
    return w->local + w->lane * bytes + address;
}

// Where the bytes of an access of a warp's current lane are, after all checks. `value`: what will
// be written; threads that write the same bytes do not race.
static uint8_t *located(Machine *m, Warp *w, int space, uint64_t address, int64_t size,
                        Access access, const uint8_t *value, int read_only)
{
    if (address & (size - 1))
        failed(m, w, "%s address %#llx is not a multiple of %lld, as the access requires",
               SPACES[space], (unsigned long long)address, (long long)size);
    if (space == GENERIC) {
        const uint64_t window = address >> 40 << 40;
        space = window == SHARED_WINDOW ? SHARED : window == LOCAL_WINDOW ? LOCAL : GLOBAL;
        if (space != GLOBAL) address -= window;
    }
    if (space == SHARED) return in_shared(m, w, address, size, access, value);
    if (space == LOCAL) return in_local(m, w, address, size, access);
    return in_global(m, w, address, size, access, value, read_only);
}
