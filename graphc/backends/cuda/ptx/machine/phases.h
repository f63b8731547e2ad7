// mbarriers and barriers of clusters: phases that warps wait for, and what they order.
//
// An arrival hands on what its warp has done and seen; who waits for the phase takes that over.
// An arrival of some lanes hands on what other lanes did only if lanes have met (bar.warp.sync);
// products of the warp are done for all of its lanes once they have been waited for.

static uint32_t tick(Machine *m)
{
    const uint32_t now = ++*m->launch->clock;
    if (now >> (32 - THREAD_BITS))
        failed(m, NULL, "the kernel meets at more barriers than can be counted");
    return now;
}

static void merge(const Machine *m, uint32_t *to, const uint32_t *from)
{
    for (int u = 0; u < m->warps; ++u) {
        if (from[u] > to[u]) to[u] = from[u];
        if (from[MOST_WARPS + u] > to[MOST_WARPS + u]) to[MOST_WARPS + u] = from[MOST_WARPS + u];
    }
    for (int b = 2 * MOST_WARPS; b < 2 * MOST_WARPS + m->phase_count; ++b)
        if (from[b] > to[b]) to[b] = from[b];
}

static void set_least(const Machine *m, Warp *w)
{
    w->least = ~0u;
    for (int u = 0; u < m->warps; ++u) if (w->seen[u] < w->least) w->least = w->seen[u];
}

static void hand_on(Machine *m, Warp *w, uint32_t mask, uint32_t *to)
{
    const uint32_t now = tick(m);
    merge(m, to, w->seen);
    to[MOST_WARPS + w->id] = w->product_time = now;
    if (mask != w->live && !w->is_synced) {
        if (w->time > to[w->id]) to[w->id] = w->time;
        return;
    }
    to[w->id] = w->time = now;
    if (w->is_synced) w->seen[w->id] = now;
    w->is_synced = 0;
}

static void take_over(const Machine *m, Warp *w, const uint32_t *from)
{
    merge(m, w->seen, from);
    set_least(m, w);
}

// ---------------------------------------------------------------- mbarriers

enum { INIT, INVALIDATE, ARRIVE, EXPECT, ARRIVE_EXPECT, DROP, TEST, TEST_PARITY, TRY, TRY_PARITY };

static void mark_phases(Machine *m, uint64_t place, uint32_t tag)
{
    const int shift = m->launch->shared_shift;
    for (uint64_t n = place >> shift; n <= (place + 7) >> shift; ++n) m->writer[n] = tag;
}

static void make_phases(Machine *m, Warp *w, uint64_t address, uint32_t count)
{
    if (count == 0 || count >> 20)
        failed(m, w, "an mbarrier waits for %u arrivals: it must be 1 to 2^20 - 1", count);
    const uint64_t place = in_shared(m, w, address, 8, WRITE, NULL) - m->shared;
    if (m->phase_count == MOST_PHASES)
        failed(m, w, "there are more than %d mbarriers", MOST_PHASES);
    Phases *made = &m->phases[m->phase_count++];
    memset(made, 0, sizeof *made);
    made->place = place, made->made = tag_of(w, w->id * LANES + w->lane), made->is_live = 1;
    made->expected = made->pending = count;
    mark_phases(m, place, OBJECT);
}

// The mbarrier at an address, whose init came before what a thread does now.
static Phases *phases_at(Machine *m, Warp *w, uint64_t address)
{
    const uint64_t place = shared_place(m, w, address, 8);
    if (address & 7) failed(m, w, "an mbarrier at %llu is not at a multiple of 8", (unsigned long long)address);
    for (int n = m->phase_count - 1; n >= 0; --n) {
        Phases *p = &m->phases[n];
        if (p->place != place || !p->is_live) continue;
        if (!is_ordered(m, w, p->made, w->id * LANES + w->lane))
            failed(m, w, "race: the mbarrier at %llu is used, whose init no barrier orders before",
                   (unsigned long long)address);
        return p;
    }
    failed(m, w, "there is no mbarrier at %llu: mbarrier.init must come first", (unsigned long long)address);
    return NULL;
}

static void fence_phases(Machine *m, Warp *w)
{
    for (int n = 0; n < m->phase_count; ++n) {
        const uint32_t by = m->phases[n].made & ((1 << THREAD_BITS) - 1);
        if ((int)by / LANES == w->id) m->phases[n].is_fenced = 1;
    }
    w->inits_fenced = 1;
}

static void end_phase_if_complete(Machine *m, Phases *p)
{
    if (p->pending || p->bytes) return;
    const int own = 2 * MOST_WARPS + (int)(p - m->phases);
    p->now[own] = tick(m);
    merge(m, p->past, p->now);
    memset(p->now, 0, sizeof p->now);
    p->pending = p->expected;
    ++p->phase, ++m->moves;
}

static void arrive(Machine *m, Warp *w, Phases *p, uint32_t mask, int64_t count)
{
    if (count > p->pending)
        failed(m, w, "an mbarrier that lacks %lld arrivals is given %lld", (long long)p->pending,
               (long long)count);
    hand_on(m, w, mask, p->now);
    p->pending -= count, ++m->moves;
    end_phase_if_complete(m, p);
}

// Whether a phase is over; a try that finds it open is told so once, and then waits: if `again` is
// the same instruction, of the same mbarrier in the same phase.
static int is_over(Machine *m, Warp *w, const Instruction *i, Phases *p, uint64_t given,
                   const Instruction *again, int *waits)
{
    const int by_parity = i->aux[0] == TEST_PARITY || i->aux[0] == TRY_PARITY;
    const int over = by_parity ? (p->phase & 1) != (int64_t)(given & 1) : p->phase > (int64_t)given;
    if (over) { take_over(m, w, p->past); w->polled = NULL; return 1; }
    *waits |= again == i && w->polled_place == p->place && w->polled_phase == p->phase;
    w->polled = i, w->polled_place = p->place, w->polled_phase = p->phase;
    return 0;
}

static uint64_t wide(const Warp *w, const Operand *o, int lane)
{ return ((const uint64_t *)lanes(w, o))[lane]; }

// mbarrier.*: aux tell what, and which operands there are: a count, bytes. 0 if the warp waits.
static int phase(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const Operand *x = o + i->results;
    const int what = i->aux[0];
    if (what >= TEST) {
        const Instruction *const again = w->polled;
        uint32_t over = 0;
        int waits = 0;
        EACH_LANE(mask) {
            Phases *p = phases_at(m, w, wide(w, x, l));
            over |= (uint32_t)is_over(m, w, i, p, wide(w, x + 1, l), again, &waits) << l;
        }
        if (waits && over != mask) { w->state = POLLING; return 0; }
        uint32_t *to = lanes(w, o);
        *to = (*to & ~mask) | over;
        return 1;
    }
    EACH_LANE(mask) {
        const uint64_t address = wide(w, x, l);
        if (what == INIT) { make_phases(m, w, address, word(w, x + 1, l)); continue; }
        Phases *p = phases_at(m, w, address);
        if (what == INVALIDATE) {
            p->is_live = 0;
            mark_phases(m, p->place, tag_of(w, w->id * LANES + l));
            continue;
        }
        const uint64_t state = p->phase;
        if (what == EXPECT || what == ARRIVE_EXPECT) p->bytes += word(w, x + 1, l);
        if (what == DROP) --p->expected;
        if (what != EXPECT)
            arrive(m, w, p, mask, what == ARRIVE && i->count > 1 ? word(w, x + 1, l) : 1);
        if (i->results) ((uint64_t *)lanes(w, o))[l] = state;
    }
    return 1;
}

// cp.async.mbarrier.arrive.noinc: each lane arrives once its copies so far are there.
static void arrive_with_copies(Machine *m, Warp *w, const Operand *o, uint32_t mask)
{
    Phases *p = NULL;
    EACH_LANE(mask) {
        Phases *of_lane = phases_at(m, w, wide(w, o, l));
        if (p && of_lane != p) failed(m, w, "lanes arrive with their copies at different mbarriers");
        p = of_lane;
    }
    m->arrivals = grown(m, m->arrivals, m->arrival_count, &m->arrival_room, sizeof(Arrival));
    Arrival *a = &m->arrivals[m->arrival_count++];
    memset(a, 0, sizeof *a);
    a->warp = w, a->phase = (int)(p - m->phases), a->mask = mask, a->time = w->time;
    a->number = ++m->arrivals_asked;
    for (int64_t n = 0; n < w->copy_count; ++n)
        if (mask >> w->copies[n].lane & 1 && !w->copies[n].arrival) w->copies[n].arrival = a->number;
    hand_on(m, w, mask, a->seen);
    ++m->moves;
}

// Ends the copies of the first arrival, or the last, and arrives; whether there was any.
static int deliver_arrival(Machine *m)
{
    if (!m->arrival_count) return 0;
    const int64_t chosen = m->launch->order & 1 ? m->arrival_count - 1 : 0;
    const Arrival a = m->arrivals[chosen];
    memmove(m->arrivals + chosen, m->arrivals + chosen + 1,
            (--m->arrival_count - chosen) * sizeof a);
    Warp *w = a.warp;
    int64_t kept = 0;
    for (int64_t n = 0; n < w->copy_count; ++n)
        if (w->copies[n].arrival == a.number) end_copy(m, w, &w->copies[n], a.time);
        else w->copies[kept++] = w->copies[n];
    w->copy_count = kept;
    Phases *p = &m->phases[a.phase];
    const int count = __builtin_popcount(a.mask);
    if (count > p->pending)
        failed(m, w, "an mbarrier that lacks %lld arrivals is given %d by copies",
               (long long)p->pending, count);
    merge(m, p->now, a.seen);
    p->pending -= count, ++m->moves;
    end_phase_if_complete(m, p);
    return 1;
}

// ---------------------------------------------------------------- clusters

static void end_cluster_phase(Machine *m)
{
    memcpy(m->cluster.past, m->cluster.now, sizeof m->cluster.past);
    memset(m->cluster.now, 0, sizeof m->cluster.now);
    m->cluster.warps = 0, ++m->cluster.generation, ++m->moves;
}

// Ends a phase to which all warps that are left have come.
static int release_cluster(Machine *m)
{
    uint64_t live = 0;
    for (int s = 0; s < m->warps; ++s) if (m->warp[s].state != DONE) live |= 1ull << s;
    if (!m->cluster.warps || live & ~m->cluster.warps) return 0;
    end_cluster_phase(m);
    return 1;
}

// Without .release (aux) an arrival hands on nothing but inits of mbarriers that were fenced.
static void arrive_at_cluster(Machine *m, Warp *w, const Instruction *i, uint32_t mask)
{
    if (m->cluster.warps >> w->id & 1)
        failed(m, w, "the warp arrives at the barrier of its cluster twice before it waits");
    if (i->aux[0] || w->inits_fenced) hand_on(m, w, mask, m->cluster.now);
    m->cluster.warps |= 1ull << w->id;
    w->cluster_arrivals = m->cluster.generation + 1;
}

static int wait_for_cluster(Machine *m, Warp *w)
{
    if (!w->cluster_arrivals)
        failed(m, w, "the warp waits for its cluster, at whose barrier it has not arrived");
    if (m->cluster.generation < w->cluster_arrivals) { w->state = POLLING; return 0; }
    take_over(m, w, m->cluster.past);
    w->cluster_arrivals = 0;
    return 1;
}

// ---------------------------------------------------------------- waiting

// Lets warps look again once anything has happened that they may wait for.
static int resume_polling(Machine *m)
{
    if (!m->moves) return 0;
    int resumed = 0;
    for (int s = 0; s < m->warps; ++s)
        if (m->warp[s].state == POLLING) m->warp[s].state = RUNNING, resumed = 1;
    m->moves = 0;
    return resumed;
}

static void fail_stuck(Machine *m, Warp *w)
{
    if (w->state == POLLING && w->polled)
        for (int n = 0; n < m->phase_count; ++n) {
            const Phases *p = &m->phases[n];
            if (p->place != w->polled_place || !p->is_live) continue;
            failed(m, w, "the mbarrier at %llu is waited for, whose phase does not end: it lacks %lld "
                   "arrivals and %lld bytes", (unsigned long long)(p->place % m->stride),
                   (long long)p->pending, (long long)p->bytes);
        }
    failed(m, w, "warps wait at a barrier that others do not reach");
}

static void elect(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const Operand *x = o + i->results;
    check_met(m, w, x, mask);
    const int leader = __builtin_ctz(mask);
    uint32_t *to = lanes(w, o), *is = lanes(w, o + 1);
    EACH_LANE(mask) to[l] = leader;
    *is = (*is & ~mask) | 1u << leader;
}
