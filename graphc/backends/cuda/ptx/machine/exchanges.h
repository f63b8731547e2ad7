// What lanes of a warp do together: shuffles, votes, matches, reductions.

enum { UP, DOWN, BUTTERFLY, INDEXED };
enum { ALL, ANY, UNIFORM, BALLOT };

// All lanes that an operand names must have come; those that have exited are not waited for.
static void check_met(Machine *m, Warp *w, const Operand *o, uint32_t mask)
{
    EACH_LANE(mask) {
        const uint32_t named = word(w, o, l);
        if (!(named >> l & 1))
            failed(m, w, "the mask %#x of lanes that meet does not name lane %d itself", named, l);
        if (named & w->live & ~mask)
            failed(m, w, "the warp has diverged: of the lanes %#x that shall meet, %#x have not come",
                   named & w->live, named & w->live & ~mask);
    }
}

/* Stores a value of each lane, and a predicate if the instruction gives one. */
static void give(Warp *w, const Instruction *i, const Operand *o, uint32_t mask,
                 const uint32_t *values, uint32_t holds)
{
    uint32_t *to = lanes(w, o);
    EACH_LANE(mask) to[l] = values[l];
    if (i->results > 1) {
        uint32_t *p = lanes(w, o + 1);
        *p = (*p & ~mask) | holds;
    }
}

static void shuffle(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const Operand *x = o + i->results;
    check_met(m, w, x + 3, mask);
    uint32_t found[LANES], inside = 0;
    EACH_LANE(mask) {
        const uint32_t by = word(w, x + 1, l) & 31, c = word(w, x + 2, l);
        const int segment = c >> 8 & 31, clamp = c & 31;
        const int most = (l & segment) | (clamp & ~segment), least = l & segment;
        int from, in;
        switch (i->aux[0]) {
        case UP: from = l - (int)by, in = from >= most; break;
        case DOWN: from = l + by, in = from <= most; break;
        case BUTTERFLY: from = l ^ by, in = from <= most; break;
        default: from = least | (by & ~segment), in = from <= most;
        }
        if (!in) from = l;
        else inside |= 1u << l;
        if (!(mask >> from & 1))
            failed(m, w, "lane %d takes a value of lane %d, which does not take part", l, from);
        found[l] = word(w, x, from);
    }
    give(w, i, o, mask, found, inside);
}

static void vote(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const Operand *x = o + i->results;
    check_met(m, w, x + 1, mask);
    const uint32_t holds = *(uint32_t *)lanes(w, x) & mask;
    if (i->aux[0] == BALLOT) {
        uint32_t *to = lanes(w, o);
        EACH_LANE(mask) to[l] = holds & word(w, x + 1, l);
        return;
    }
    uint32_t *to = lanes(w, o), found = 0;
    EACH_LANE(mask) {
        const uint32_t named = word(w, x + 1, l) & mask, of = holds & named;
        const int is = i->aux[0] == ALL ? of == named : i->aux[0] == ANY ? of != 0
                                                      : of == named || of == 0;
        found |= (uint32_t)is << l;
    }
    *to = (*to & ~mask) | found;
}

static void match(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const Operand *x = o + i->results;
    check_met(m, w, x + 1, mask);
    uint32_t found[LANES], equal = 0;
    EACH_LANE(mask) {
        found[l] = 0;
        for (int k = 0; k < LANES; ++k)
            if (mask >> k & 1 && memcmp((uint8_t *)lanes(w, x) + l * i->BYTES,
                                        (uint8_t *)lanes(w, x) + k * i->BYTES, i->BYTES) == 0)
                found[l] |= 1u << k;
        if (i->aux[0] == ALL) {
            if (found[l] == mask) equal |= 1u << l;
            else found[l] = 0;
        }
    }
    give(w, i, o, mask, found, equal);
}

static void reduce(Machine *m, Warp *w, const Instruction *i, const Operand *o, uint32_t mask)
{
    const Operand *x = o + i->results;
    check_met(m, w, x + 1, mask);
    int first = 1;
    uint32_t found = 0;
    EACH_LANE(mask) {
        uint8_t other[8] = {0};
        uint32_t value = word(w, x, l);
        if (first) found = value;
        else if (i->aux[3] == S32) atomic_s32((uint8_t *)&found, (uint8_t *)&value, other, i->aux[7]);
        else atomic_u32((uint8_t *)&found, (uint8_t *)&value, other, i->aux[7]);
        first = 0;
    }
    uint32_t *to = lanes(w, o);
    EACH_LANE(mask) to[l] = found;
}
