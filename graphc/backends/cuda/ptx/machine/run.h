// Runs the instructions of warps, and the warps of blocks.
//
// A branch that lanes take differently splits a warp into paths, which meet again where all ways
// from the branch do (`join`, the immediate post-dominator). A warp runs until it waits at a barrier.

#define NEXT ++path->pc; continue
enum { POPC = 1, EVERY, SOME };  // how bar.red reduces

static uint32_t guarded(Machine *m, Warp *w, const Instruction *i, uint32_t mask)
{
    if (i->guard < 0) return mask;
    if (mask & ~w->defined[i->guard]) failed(m, w, "a guard is read that was never written");
    const uint32_t holds = *(const uint32_t *)(w->file + i->guard_place);
    return mask & (i->negated ? ~holds : holds);
}

static void check_converged(Machine *m, Warp *w, const Instruction *i, uint32_t path, uint32_t mask)
{
    if (path != w->live || (mask != 0 && mask != path))
        failed(m, w, "the warp has diverged: lanes %#x of %#x do an instruction that all must do "
               "together", mask, w->live);
    if (i->aligned > 1 && w->live != ALL_LANES)
        failed(m, w, "a warp of fewer than 32 threads does an instruction of all lanes");
}

// Whether a product of a warp group writes its sums without reading them.
static int only_writes_sums(Warp *w, const Instruction *i, const Operand *o)
{
    if (i->op != WGMMA || i->SCALE_D == 1) return 0;
    const Operand *scale = o + i->results + i->count - 1;
    return i->SCALE_D == 0
        || (w->defined[scale->id] == ALL_LANES && *(uint32_t *)lanes(w, scale) == 0);
}

static void check_sources(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const int sums = only_writes_sums(w, i, o) ? i->results : 0;
    for (int n = i->results + sums; n < i->results + i->count; ++n) {
        const uint32_t missing = mask & ~w->defined[o[n].id];
        if (missing) {
            w->lane = __builtin_ctz(missing);
            failed(m, w, "operand %d is a register that was never written", n + 1);
        }
    }
}

static void branch(Machine *m, Warp *w, const Instruction *i, uint32_t mask)
{
    Path *path = &w->paths[w->depth - 1];
    const uint32_t stay = path->mask & ~mask;
    if (stay == 0) { path->pc = i->target; return; }
    const int next = path->pc + 1;
    Path taken = {i->target, path->join, mask}, other = {next, path->join, stay};
    if (w->depth + 2 > DEPTH) failed(m, w, "the warp has split into more than %d paths", DEPTH);
    if (i->join < 0 || i->join == path->join) --w->depth;
    else {
        path->pc = i->join;
        taken.join = other.join = i->join;
    }
    const int first = m->launch->order & 1;  // which side is run first
    w->paths[w->depth++] = first ? taken : other;
    w->paths[w->depth++] = first ? other : taken;
}

static void leave(Machine *m, Warp *w, uint32_t mask)
{
    if (w->product_count) failed(m, w, "the kernel ends while products are on their way");
    check_bulks_done(m, w, mask);
    w->live &= ~mask;
    for (int n = 0; n < w->depth; ++n) w->paths[n].mask &= ~mask;
}

static int waits_at(const Warp *w, int rank, int number)
{ return w->state == WAITING && w->rank == rank && w->barrier == number; }

// Moves the clock on: all that warps have done which came to a barrier is before what those do next
// that waited there.
static void synchronise(Machine *m, int rank, int number)
{
    const uint64_t came = m->bars[rank][number].warps;
    const uint32_t now = tick(m);
    uint32_t seen[CLOCKS] = {0};
    for (int s = 0; s < m->warps; ++s)
        if (came >> s & 1) {
            merge(m, seen, m->warp[s].seen);
            seen[s] = seen[MOST_WARPS + s] = now;
        }
    for (int s = 0; s < m->warps; ++s) {
        Warp *w = &m->warp[s];
        if (!(came >> s & 1)) continue;
        w->time = w->product_time = now;
        if (!waits_at(w, rank, number)) continue;
        memcpy(w->seen, seen, sizeof seen);
        w->is_synced = 0;
        set_least(m, w);
    }
}

// Lets the warps go on that wait at a barrier to which all have come.
static void complete(Machine *m, int rank, int number)
{
    synchronise(m, rank, number);
    for (int s = 0; s < m->warps; ++s) {
        Warp *w = &m->warp[s];
        if (!waits_at(w, rank, number)) continue;
        w->state = RUNNING;
        const Instruction *i = w->at;
        void *to = lanes(w, m->launch->operands + i->first);
        const uint32_t value = m->bars[rank][number].value;
        if (i->aux[1] == POPC) for (int l = 0; l < LANES; ++l) ((uint32_t *)to)[l] = value;
        else if (i->aux[1]) *(uint32_t *)to = (i->aux[1] == EVERY ? value == 0 : value != 0) ? ALL_LANES : 0;
    }
    memset(&m->bars[rank][number], 0, sizeof m->bars[rank][number]);
}

// bar: aux tell whether it has a number of threads, how it reduces, and whether it is arrive.
static void wait(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const Operand *x = o + i->results;
    const uint32_t number = word(w, x, 0), rank = w->rank;
    const int64_t threads = i->aux[0] ? word(w, x + 1, 0) : 0;
    if (number >= BARRIERS) failed(m, w, "barrier %u is none of 0..15", number);
    if (threads % LANES) failed(m, w, "a barrier of %lld threads: not whole warps", (long long)threads);
    if (m->bars[rank][number].warps && m->bars[rank][number].wanted != threads)
        failed(m, w, "warps meet at barrier %u with different numbers of threads", number);
    if (m->bars[rank][number].warps >> w->id & 1)
        failed(m, w, "the warp comes to barrier %u twice before others do once", number);
    m->bars[rank][number].warps |= 1ull << w->id;
    m->bars[rank][number].wanted = threads;
    if (i->aux[1]) {
        const uint32_t holds = *(uint32_t *)lanes(w, x + 1 + i->aux[0]);
        m->bars[rank][number].value += __builtin_popcount(mask & (i->aux[1] == EVERY ? ~holds : holds));
    }
    w->barrier = number;
    if (!i->aux[2]) w->state = WAITING;
    if (threads && LANES * __builtin_popcountll(m->bars[rank][number].warps) == threads)
        complete(m, rank, number);
}

// Completes barriers of all warps to which all have come that are left; whether there were any.
static int release(Machine *m)
{
    int released = 0;
    for (int rank = 0; rank < m->blocks; ++rank) {
        uint64_t live = 0;
        for (int s = 0; s < m->warps; ++s)
            if (m->warp[s].rank == rank && m->warp[s].state != DONE) live |= 1ull << s;
        for (int n = 0; n < BARRIERS; ++n)
            if (m->bars[rank][n].warps && !m->bars[rank][n].wanted
                && !(live & ~m->bars[rank][n].warps))
                complete(m, rank, n), released = 1;
    }
    return released | release_cluster(m);
}

// Lanes whose operand, or the bits of a predicate, are known.
static uint32_t known(const Warp *w, const Operand *o) { return w->defined[o->id]; }
static uint32_t bits(const Warp *w, const Operand *o) { return *(const uint32_t *)lanes(w, o); }

// Lanes whose result is known. Compilers compute with what was never written where they drop the
// result, so that is no fault before it is stored, branched on, or made an address.
static uint32_t known_result(const Warp *w, const Instruction *i, const Operand *o)
{
    const Operand *a = o + i->results, *b = a + 1, *c = a + 2;
    switch (i->aux[0]) {
    case SELECTS: return known(w, c) & ((bits(w, c) & known(w, a)) | (~bits(w, c) & known(w, b)));
    case AND_PREDICATES:
        return (known(w, a) & known(w, b)) | (known(w, a) & ~bits(w, a)) | (known(w, b) & ~bits(w, b));
    case OR_PREDICATES:
        return (known(w, a) & known(w, b)) | (known(w, a) & bits(w, a)) | (known(w, b) & bits(w, b));
    }
    uint32_t all = ALL_LANES;
    for (int n = 0; n < i->count; ++n) all &= known(w, a + n);
    return all;
}

static void scalar(Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const void *x[4];
    for (int n = 0; n < i->count; ++n) x[n] = lanes(w, o + 1 + n);
    operations[i->op - FIRST_OPERATION](lanes(w, o), x, mask);
}

static void joined(Warp *w, const Instruction *i, const Operand *o, uint32_t mask, int splits)
{
    const int parts = splits ? i->results : i->count, width = i->BYTES, whole = parts * width;
    EACH_LANE(mask)
        for (int n = 0; n < parts; ++n) {
            uint8_t *part = (uint8_t *)lanes(w, o + (splits ? n : 1 + n)) + l * width;
            uint8_t *all = (uint8_t *)lanes(w, o + (splits ? i->results : 0)) + l * whole + n * width;
            if (splits) memcpy(part, all, width);
            else memcpy(all, part, width);
        }
}

static void run_warp(Machine *m, Warp *w)
{
    const Launch *launch = m->launch;
    while (w->state == RUNNING) {
        while (w->depth && (w->paths[w->depth - 1].mask == 0
                            || w->paths[w->depth - 1].pc == w->paths[w->depth - 1].join)) --w->depth;
        if (w->depth == 0) { w->state = DONE; return; }
        Path *path = &w->paths[w->depth - 1];
        const Instruction *i = &launch->code[path->pc];
        const Operand *o = launch->operands + i->first;
        w->at = i, w->lane = -1;
        if (--m->left < 0) failed(m, w, "the block does not end: it was stopped after %lld instructions",
                                  (long long)launch->budget);
        const uint32_t mask = guarded(m, w, i, path->mask);
        if (i->aligned) check_converged(m, w, i, path->mask, mask);
        if (launch->counts) count(m, w, i, o, mask);
        if (mask == 0) { NEXT; }
        uint32_t found = ALL_LANES, gives_way = 0;
        if (i->op >= FIRST_TOLERANT) found = known_result(w, i, o);
        else check_sources(m, w, i, o, mask);
        if (launch->has_products) {
            ++w->steps;
            if (w->product_count && i->op != WGMMA) check_idle(m, w, i, o);
            if (i->op != WGMMA) for (int n = 0; n < i->results; ++n) w->changed[o[n].id] = w->steps;
        }
        switch (i->op) {
        case BRANCH: branch(m, w, i, mask); continue;
        case EXIT: leave(m, w, mask); if (w->depth && path->mask) ++path->pc; continue;
        case TRAP: failed(m, w, "the kernel traps"); break;
        case NOTHING: break;
        case LOAD: load(m, w, i, o, mask); break;
        case STORE: store(m, w, i, o, mask); break;
        case PARAMETER: load_parameter(m, w, i, o, mask); break;
        case ATOMIC_OPERATION: atomic(m, w, i, o, mask); break;
        case COPY: copy(m, w, i, o, mask); break;
        case COMMIT_COPIES: EACH_LANE(mask) ++w->groups[l]; break;
        case WAIT_COPIES: finish_copies(m, w, mask, i->aux[0]); break;
        case LOAD_MATRICES: move_matrices(m, w, i, o, 0); break;
        case STORE_MATRICES: move_matrices(m, w, i, o, 1); break;
        case MMA: multiply(m, w, i, o); break;
        case WGMMA: start_product(m, w, i, o); break;
        case WGMMA_FENCE: w->fenced = ++w->steps; break;
        case WGMMA_COMMIT: ++w->product_groups; break;
        case WGMMA_WAIT: finish_products(m, w, i->aux[0]); break;
        case PROXY_FENCE: fence_proxies(m, w, mask); break;
        case SHUFFLE: shuffle(m, w, i, o, mask); break;
        case VOTE: vote(m, w, i, o, mask); break;
        case MATCH: match(m, w, i, o, mask); break;
        case REDUCE: reduce(m, w, i, o, mask); break;
        case ACTIVE: { uint32_t *to = lanes(w, o); EACH_LANE(mask) to[l] = mask; } break;
        case MEET: check_met(m, w, o, mask); w->is_synced |= mask == w->live; break;
        case BARRIER: wait(m, w, i, o, mask); break;
        case ELECT: elect(m, w, i, o, mask); break;
        case PHASE:
            if (!phase(m, w, i, o, mask)) { uncount(m, i); return; }
            gives_way = launch->order & 2;
            break;
        case ARRIVE_WITH_COPIES: arrive_with_copies(m, w, o, mask); break;
        case INIT_FENCE: fence_phases(m, w); break;
        case CLUSTER_ARRIVE: arrive_at_cluster(m, w, i, mask); break;
        case CLUSTER_WAIT: if (!wait_for_cluster(m, w)) { uncount(m, i); return; } break;
        case BULK_COPY: case BULK_TENSOR: start_bulk(m, w, i, o, mask); break;
        case COMMIT_BULK: EACH_LANE(mask) ++w->bulk_groups[l]; break;
        case WAIT_BULK: finish_stores(m, w, mask, i->aux[0]); break;
        case JOIN: joined(w, i, o, mask, 0); break;
        case SPLIT: joined(w, i, o, mask, 1); break;
        default: scalar(w, i, o, mask);
        }
        for (int n = 0; n < i->results; ++n) {
            const uint32_t there = i->op == LOAD ? found & ~w->lost[n] : found;
            w->defined[o[n].id] = (w->defined[o[n].id] & ~mask) | (there & mask);
        }
        ++path->pc;
        if (gives_way) return;
    }
}

enum { TID, CTAID, NTID, NCTAID, LANEID, WARPID, NWARPID, LANEMASK_EQ, LANEMASK_LT, LANEMASK_LE,
       LANEMASK_GT, LANEMASK_GE, DYNAMIC_SHARED, CLOCK, CLUSTER_RANK, CLUSTER_BLOCKS, CLUSTER,
       CLUSTERS };

static void set_specials(Machine *m, Warp *w)
{
    const Launch *k = m->launch;
    for (int64_t n = 0; n < k->special_count; ++n) {
        uint32_t *to = (uint32_t *)(w->file + k->specials[2 * n + 1]);
        for (uint32_t l = 0; l < LANES; ++l) {
            const uint32_t bit = 1u << l;
            const uint32_t values[] = {
                w->id % m->block_warps * LANES + l, m->block + w->rank, k->threads, k->grid, l,
                w->id % m->block_warps, m->block_warps, bit, bit - 1, bit | (bit - 1),
                ~(bit | (bit - 1)), ~(bit - 1), k->shared_bytes, 0, w->rank, m->blocks,
                m->block / m->blocks, k->grid / m->blocks};
            to[l] = values[k->specials[2 * n]];
        }
    }
}

static void start_block(Machine *m)
{
    const Launch *k = m->launch;
    const int64_t pieces = ((m->blocks * m->stride) >> k->shared_shift) + 1;
    memset(m->writer, 0, 4 * pieces), memset(m->reader, 0, 4 * pieces);
    memset(m->fences, 0, 4 * pieces), memset(m->async_reads, 0, 2 * pieces);
    memset(m->shared, 0xff, m->blocks * m->stride);
    drop_bulks(m);
    m->phase_count = 0, m->moves = 0, m->arrival_count = 0;
    memset(&m->cluster, 0, sizeof m->cluster);
    memset(m->fence_counts, 0, sizeof m->fence_counts);
    memset(m->log_count, 0, sizeof m->log_count);
    memset(m->bars, 0, sizeof m->bars);
    m->block_first = ++*k->clock;
    m->left = k->budget;
    if (k->counts) forget_sectors(m);
    for (int n = 0; n < m->warps; ++n) {
        Warp *w = &m->warp[n];
        const int64_t threads = k->threads - n % m->block_warps * LANES;
        w->id = n, w->rank = n / m->block_warps, w->depth = 1, w->state = RUNNING;
        w->live = threads >= LANES ? ALL_LANES : (1u << threads) - 1;
        w->time = w->product_time = w->least = m->block_first;
        for (int u = 0; u < CLOCKS; ++u) w->seen[u] = m->block_first, w->fence_seen[u] = 0;
        w->inits_fenced = 0, w->polled = NULL, w->cluster_arrivals = 0;
        memset(w->bulk_groups, 0, sizeof w->bulk_groups);
        w->paths[0] = (Path){0, -1, w->live};
        w->copy_count = w->product_count = w->product_groups = w->issued = 0;
        w->steps = w->fenced = 0, w->is_synced = 0, w->sums_of = NULL, w->at = NULL;
        memset(w->groups, 0, sizeof w->groups);
        memcpy(w->defined, k->defined, 4 * k->registers);
        memset(w->busy, 0, 4 * k->registers), memset(w->changed, 0, 4 * k->registers);
        if (k->local_bytes) memset(w->local_defined, 0, LANES * k->local_bytes);
        set_specials(m, w);
    }
}

static void run_block(Machine *m)
{
    start_block(m);
    for (;;) {
        int left = 0, moved = 0;
        for (int n = 0; n < m->warps; ++n) {
            Warp *w = &m->warp[m->launch->order & 1 ? m->warps - 1 - n : n];
            if (w->state != RUNNING) continue;
            run_warp(m, w);
            moved = 1;
            if (m->launch->order & 1 && resume_polling(m)) break;  // who waited goes on first
        }
        moved |= release(m) | resume_polling(m);
        if (!moved) moved = m->launch->order & 1 ? deliver(m) || deliver_arrival(m)
                                                 : deliver_arrival(m) || deliver(m);
        Warp *waits = NULL;
        for (int n = 0; n < m->warps; ++n)
            if (m->warp[n].state != DONE) ++left, waits = &m->warp[n];
        if (left == 0) { check_bulks_come(m, NULL); return; }
        if (!moved) fail_stuck(m, waits);
    }
}

static void *zeroed(Machine *m, int64_t count, int64_t size)
{
    void *made = calloc(count ? count : 1, size);
    if (made == NULL) failed(m, NULL, "the machine has no memory left");
    return made;
}

static void allocate(Machine *m)
{
    const Launch *k = m->launch;
    const int64_t pieces = ((m->blocks * m->stride) >> k->shared_shift) + 1;
    m->shared = zeroed(m, m->blocks * m->stride, 1);
    m->readers = zeroed(m, pieces, 4 * ROW);
    m->phases = zeroed(m, MOST_PHASES, sizeof(Phases));
    if (k->counts) m->touched = zeroed(m, 1, sizeof *m->touched);
    m->writer = zeroed(m, pieces, 4), m->reader = zeroed(m, pieces, 4);
    m->fences = zeroed(m, pieces, 4), m->async_reads = zeroed(m, pieces, 2);
    for (int n = 0; n < m->warps; ++n) {
        Warp *w = &m->warp[n];
        w->file = zeroed(m, k->file_bytes, 1);
        memcpy(w->file, k->file, k->file_bytes);
        w->defined = zeroed(m, k->registers, 4), w->busy = zeroed(m, k->registers, 4);
        w->changed = zeroed(m, k->registers, 4);
        w->local = zeroed(m, LANES * k->local_bytes, 1);
        w->local_defined = zeroed(m, LANES * k->local_bytes, 1);
    }
}

static void release_memory(Machine *m)
{
    drop_bulks(m);
    free(m->bulks), free(m->arrivals), free(m->phases), free(m->readers);
    free(m->shared), free(m->writer), free(m->reader), free(m->fences), free(m->async_reads);
    if (m->touched) free(m->touched->entries), free(m->touched);
    for (int n = 0; n < MOST_WARPS; ++n) {
        Warp *w = &m->warp[n];
        free(w->file), free(w->defined), free(w->busy), free(w->changed), free(w->local);
        free(w->local_defined), free(w->copies), free(w->products);
    }
    for (int n = 0; n < MOST_THREADS; ++n) free(m->fence_times[n]);
    for (int n = 0; n < MOST_WARPS / 4; ++n) free(m->log[n]);
    free(m);
}

// Runs the blocks of a launch; 0, or 1 if `message` says what is wrong.
int run_launch(const Launch *launch)
{
    if (halves[0x3c00] == 0) for (int n = 0; n < 1 << 16; ++n) halves[n] = value_of_f16(n);
    Machine *volatile m = calloc(1, sizeof(Machine));
    if (m == NULL) return 1;
    m->launch = launch;
    m->block_warps = (launch->threads + LANES - 1) / LANES;
    m->blocks = launch->cluster;
    m->warps = m->blocks * m->block_warps;
    m->stride = (launch->shared_bytes + 1023) / 1024 * 1024;
    if (m->warps > MOST_WARPS || m->blocks > MOST_BLOCKS) { free(m); return 2; }
    m->launch_first = ++*launch->clock;
    if (setjmp(m->failed)) { release_memory(m); return 1; }
    allocate(m);
    for (int64_t n = 0; n < launch->block_count; ++n) {
        m->block = launch->blocks[launch->order & 1 ? launch->block_count - 1 - n : n];
        run_block(m);
    }
    release_memory(m);
    return 0;
}
