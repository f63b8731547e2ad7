// wgmma: products of warp groups, whose operands are described by 64 bits each, or are registers.
//
// Products are computed when their group is waited for. Until then their sums may not be touched,
// their operands may not change, and what they read must have been written through the generic
// proxy, then fenced for the asynchronous one, then been ordered by a barrier.

enum { NO_SWIZZLE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 };
enum { CHUNK = 16 };
#define COLUMNS aux[0]
#define A_TYPE aux[1]
#define B_TYPE aux[2]
#define A_HELD aux[3]
#define SCALE_D aux[4]
#define SIGNS aux[5]    // bit 0: a is negated, bit 1: b
#define ACROSS aux[6]   // bit 0: a is M-major, bit 1: b is N-major

// Where a chunk of 16 bytes lies: row or column `at`, and byte of the depth; across, the first of 8
// rows or columns, and the element of the depth.
static uint64_t chunk_place(uint64_t description, int across, int at, int depth)
{
    const uint64_t start = (description & 0x3fff) << 4;
    const uint64_t leading = (description >> 16 & 0x3fff) << 4;
    const uint64_t stride = (description >> 32 & 0x3fff) << 4;
    const int mode = description >> 62;
    const int width = mode == SWIZZLE_128 ? 128 : mode == SWIZZLE_64 ? 64 : mode == SWIZZLE_32 ? 32 : 16;
    uint64_t place;
    if (!across && mode == NO_SWIZZLE)
        place = start + at / 8 * stride + depth / 16 * leading + at % 8 * 16 + depth % 16;
    else if (!across) place = start + at / 8 * stride + at % 8 * width + depth;
    else if (mode == NO_SWIZZLE)
        place = start + 2 * at / 16 * stride + depth / 8 * leading + depth % 8 * 16;
    else
        place = start + 2 * at / width * leading + 2 * at % width + depth / 8 * stride
                + depth % 8 * width;
    const int rows = width / 16 - 1;  // of the address, that change the chunk
    return mode == NO_SWIZZLE ? place : place ^ (place >> 7 & rows) << 4;
}

static void check_description(Machine *m, Warp *w, uint64_t description)
{
    if (description >> 14 & 3 || description >> 30 & 3 || description >> 46 & 7 || description >> 52 & 1023)
        failed(m, w, "the matrix descriptor %#llx has bits set that must be 0",
               (unsigned long long)description);
    if (description >> 49 & 7)
        failed(m, w, "the matrix descriptor %#llx has a base offset, which the machine does not know",
               (unsigned long long)description);
}

// That what a thread wrote into a piece is fenced for the asynchronous proxy, by it or by this warp.
static void check_fenced(Machine *m, Warp *w, int64_t piece, uint64_t place)
{
    const uint32_t tag = m->writer[piece], by = tag & ((1 << THREAD_BITS) - 1), warp = by / LANES;
    const uint32_t fence = m->fences[piece];
    const int is_fenced = fence < m->fence_counts[by]
        && (warp == (uint32_t)w->id || m->fence_times[by][fence] < w->seen[warp]);
    if (!is_fenced && tag >> THREAD_BITS >= w->fence_seen[warp])
        failed(m, w, "the asynchronous proxy uses shared memory at %llu, which thread %u has written, "
               "without fence.proxy.async between", (unsigned long long)place, by);
}

// That products may read a piece: it is written, fenced and ordered.
static void check_async_read(Machine *m, Warp *w, uint64_t place)
{
    char who[40];
    const int shift = m->launch->shared_shift, thread = w->id * LANES;
    const int64_t first = place >> shift, last = (place + CHUNK - 1) >> shift;
    check_written(m, w, place, first, last - first + 1);
    for (int64_t n = first; n <= last; ++n) {
        const uint32_t tag = m->writer[n], by = tag & ((1 << THREAD_BITS) - 1);
        if (tag == PENDING)
            failed(m, w, "products read shared memory at %llu before its asynchronous copy is "
                   "waited for", (unsigned long long)place);
        if (!is_ordered(m, w, tag, thread))
            failed(m, w, "race: products read shared memory at %llu, which %s has written without a "
                   "barrier between", (unsigned long long)place, told(who, m, tag));
        if (by < MOST_THREADS) check_fenced(m, w, n, place);
    }
}

typedef void (*Visit)(Machine *m, Warp *w, uint64_t place);
static void count_read(Machine *m, Warp *w, uint64_t place, int by)
{
    (void)w;
    const int shift = m->launch->shared_shift;
    for (uint64_t n = place >> shift; n <= (place + CHUNK - 1) >> shift; ++n) m->async_reads[n] += by;
}
static void start_read(Machine *m, Warp *w, uint64_t place)
{
    check_async_read(m, w, place);
    count_read(m, w, place, 1);
}
static void end_read(Machine *m, Warp *w, uint64_t place)
{
    const int shift = m->launch->shared_shift;
    const int64_t first = place >> shift, pieces = ((place + CHUNK - 1) >> shift) - first + 1;
    count_read(m, w, place, -1);
    mark_read(m, w, "shared", place, m->writer + first, m->reader + first, m->readers + first * ROW,
              pieces, BY_PRODUCTS + w->id);
}

// All chunks of an operand that a warp reads: some rows or columns.
static void visit(Machine *m, Warp *w, uint64_t description, int across, int from, int count,
                  Visit each)
{
    if (across)
        for (int k = 0; k < 16; ++k)
            for (int n = from; n < from + count; n += 8)
                each(m, w, shared_place(m, w, chunk_place(description, 1, n, k), CHUNK));
    else
        for (int n = from; n < from + count; ++n)
            for (int k = 0; k < 32; k += CHUNK)
                each(m, w, shared_place(m, w, chunk_place(description, 0, n, k), CHUNK));
}

// to[depth][column], or [row][depth] if it is `left`.
static void gather(const Machine *m, const Warp *w, uint64_t description, int across, int from,
                   int count, int type, int left, Number *to)
{
    const int each = per_word(type), depth = 8 * each;
    Number part[16];
    for (int n = 0; n < (across ? 16 * count / 8 : 2 * count); ++n) {
        const int at = across ? from + n % (count / 8) * 8 : from + n / 2;
        const int k = across ? n / (count / 8) : n % 2 * CHUNK;
        uint32_t words[4];
        memcpy(words, m->shared + w->rank * m->stride + chunk_place(description, across, at, k), CHUNK);
        for (int x = 0; x < 4; ++x)
            if (type >= OF_S8) unpacked_bytes(&part[x * each].i, words[x], type);
            else unpacked(&part[x * each].f, words[x], type);
        for (int e = 0; e < 4 * each; ++e) {
            const int row = at - from + (across ? e : 0);
            const int deep = across ? k : k * each / 4 + e;
            to[left ? row * depth + deep : deep * count + row] = part[e];
        }
    }
}

static void held(Warp *w, const Operand *o, int type, Number *to)
{
    const int each = per_word(type), depth = 8 * each;
    for (int n = 0; n < 4; ++n)
        for (int l = 0; l < LANES; ++l) {
            Number *at = to + ((l >> 2) + 8 * (n & 1)) * depth + ((l & 3) + 4 * (n >> 1)) * each;
            if (type >= OF_S8) unpacked_bytes(&at->i, word(w, o + n, l), type);
            else unpacked(&at->f, word(w, o + n, l), type);
        }
}

static void compute(Machine *m, Warp *w, const Product *p)
{
    static Number a[16 * 32], b[32 * MOST_COLUMNS], d[16 * MOST_COLUMNS];
    const Instruction *i = p->insn;
    const Operand *sums = m->launch->operands + i->first, *left = sums + 2 * i->results;
    const int columns = i->COLUMNS, depth = 8 * per_word(i->A_TYPE), whole = i->A_TYPE >= OF_S8;
    if (i->A_HELD) held(w, left, i->A_TYPE, a);
    else gather(m, w, p->a, i->ACROSS & 1, 16 * (w->id % 4), 16, i->A_TYPE, 1, a);
    gather(m, w, p->b, i->ACROSS >> 1, 0, columns, i->B_TYPE, 0, b);
    if (whole) products_s32(&d[0].i, &a[0].i, &b[0].i, 16, columns, depth);
    else products_f32(&d[0].f, &a[0].f, &b[0].f, 16, columns, depth);
    const float sign = i->SIGNS == 1 || i->SIGNS == 2 ? -1 : 1;
    for (int n = 0; n < i->results; ++n)
        for (int l = 0; l < LANES; ++l) {
            const int row = (l >> 2) + 8 * (n >> 1 & 1), column = 8 * (n / 4) + 2 * (l & 3) + (n & 1);
            const Number found = d[row * columns + column];
            Number *to = (Number *)lanes(w, sums + n) + l;
            if (whole) to->i = (p->adds ? to->i : 0) + found.i;
            else to->f = (p->adds ? to->f : 0) + sign * found.f;
        }
}

// Registers of a product: `by` more or fewer products on their way have them as sums (or operands).
static void occupy(Warp *w, const Instruction *i, const Operand *o, int by)
{
    for (int n = 0; n < i->results; ++n) w->busy[o[n].id] += by;
    for (int n = 0; n < 4 * i->A_HELD; ++n) w->busy[o[2 * i->results + n].id] += by << 16;
}

static void check_registers(Machine *m, Warp *w, const Instruction *i, const Operand *o)
{
    if (w->fenced == 0) failed(m, w, "wgmma.fence must come before the first product");
    const int from = i->results, count = i->results + 4 * i->A_HELD;
    for (int n = from; n < from + count; ++n)
        if (w->changed[o[n].id] > w->fenced)
            failed(m, w, "a register of a product was written since the last wgmma.fence");
    const int first = w->busy[o[0].id] & 0xffff;
    for (int n = 0; n < i->results; ++n)
        if ((w->busy[o[n].id] & 0xffff) != (uint32_t)first || w->busy[o[n].id] >> 16)
            failed(m, w, "products on their way have some of the same registers as sums");
    for (int n = 0; n < 4 * i->A_HELD; ++n)
        if (w->busy[o[2 * i->results + n].id] & 0xffff)
            failed(m, w, "a product takes sums that are on their way as its operand");
    if (first && w->sums_of != NULL && (w->sums_of->results != i->results
            || w->sums_of->COLUMNS != i->COLUMNS))
        failed(m, w, "products of several shapes have the same sums without a wait between");
}

// All warps of a group must ask for the same products.
static void check_group(Machine *m, Warp *w, const Product *p)
{
    const int group = w->id / 4;
    if (m->warps < 4 * group + 4 || (m->blocks > 1 && m->block_warps % 4))
        failed(m, w, "wgmma needs four warps, of which the first is a multiple of four");
    if (w->issued < m->log_count[group]) {
        const Product *other = &m->log[group][w->issued];
        if (other->insn != p->insn || other->a != p->a || other->b != p->b)
            failed(m, w, "the warps of a group ask for different products");
    } else {
        m->log[group] = grown(m, m->log[group], m->log_count[group], &m->log_room[group], sizeof *p);
        m->log[group][m->log_count[group]++] = *p;
    }
    ++w->issued;
}

static uint64_t uniform(Machine *m, Warp *w, const Operand *o)
{
    const uint64_t *value = lanes(w, o);
    for (int l = 1; l < LANES; ++l)
        if (value[l] != value[0]) failed(m, w, "lanes have different matrix descriptors");
    return value[0];
}

static void start_product(Machine *m, Warp *w, const Instruction *i, const Operand *o)
{
    const Operand *left = o + 2 * i->results, *right = left + (i->A_HELD ? 4 : 1);
    Product p = {i, 0, 0, w->product_groups, i->SCALE_D == 1};
    if (i->SCALE_D == 2) {
        const uint32_t scales = *(uint32_t *)lanes(w, right + 1);
        if (scales != 0 && scales != ALL_LANES) failed(m, w, "lanes have different values of scale-d");
        p.adds = scales != 0;
    }
    check_registers(m, w, i, o);
    p.b = uniform(m, w, right);
    check_description(m, w, p.b);
    if (!i->A_HELD) {
        p.a = uniform(m, w, left);
        check_description(m, w, p.a);
        visit(m, w, p.a, i->ACROSS & 1, 16 * (w->id % 4), 16, start_read);
    }
    visit(m, w, p.b, i->ACROSS >> 1, 0, i->COLUMNS, start_read);
    check_group(m, w, &p);
    occupy(w, i, o, 1);
    w->sums_of = i;
    w->products = grown(m, w->products, w->product_count, &w->product_room, sizeof p);
    w->products[w->product_count++] = p;
}

// Ends the products of all but so many groups.
static void finish_products(Machine *m, Warp *w, int left)
{
    int64_t done = 0;
    while (done < w->product_count && w->products[done].group < w->product_groups - left) {
        const Product *p = &w->products[done++];
        const Instruction *i = p->insn;
        compute(m, w, p);
        if (!i->A_HELD) visit(m, w, p->a, i->ACROSS & 1, 16 * (w->id % 4), 16, end_read);
        visit(m, w, p->b, i->ACROSS >> 1, 0, i->COLUMNS, end_read);
        occupy(w, i, m->launch->operands + i->first, -1);
    }
    w->product_count -= done;
    memmove(w->products, w->products + done, w->product_count * sizeof(Product));
}

static void check_idle(Machine *m, Warp *w, const Instruction *i, const Operand *o)
{
    for (int n = 0; n < i->results; ++n)
        if (w->busy[o[n].id])
            failed(m, w, "a register of a product on its way is written before wgmma.wait_group");
    for (int n = i->results; n < i->results + i->count; ++n)
        if (w->busy[o[n].id] & 0xffff)
            failed(m, w, "a sum of a product on its way is read before wgmma.wait_group");
}

static void fence_proxies(Machine *m, Warp *w, uint32_t mask)
{
    EACH_LANE(mask) {
        const int thread = w->id * LANES + l;
        int64_t room = m->fence_room[thread];
        m->fence_times[thread] = grown(m, m->fence_times[thread], m->fence_counts[thread], &room, 4);
        m->fence_room[thread] = room;
        m->fence_times[thread][m->fence_counts[thread]++] = w->time;
    }
    if (mask == w->live) memcpy(w->fence_seen, w->seen, sizeof w->seen);
    fence_phases(m, w);
}
