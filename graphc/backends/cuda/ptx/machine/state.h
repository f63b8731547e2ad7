// What a launch is, and the state of a block: registers of warps, shared memory, and for every piece
// of memory who wrote and read it last, and when.
//
// Blocks of a cluster run together: their warps are numbered one after another, and their shared
// memories lie one after another. A cluster of one block is the usual case.
//
// Time is told by a clock that every barrier moves on. An access is marked with a tag: the time of
// its warp, and who made it. A warp knows up to which time it has seen what each of these has done
// (a vector clock); what another one did at that time or later is not ordered with what this one
// does: a race. Besides threads, the products of a warp and the copies that an mbarrier counts have
// clocks of their own, as these work through the asynchronous proxy.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { LANES = 32, MOST_WARPS = 64, MOST_BLOCKS = 16, DEPTH = 128, BARRIERS = 16 };
enum { MOST_THREADS = LANES * MOST_WARPS, MOST_PHASES = 256, MOST_RANK = 5 };
// Who made an access: a thread, the products of a warp, copies of an mbarrier, or several.
enum { THREAD_BITS = 12, BY_PRODUCTS = MOST_THREADS, BY_COPIES = BY_PRODUCTS + MOST_WARPS,
       BLOCKS = 4092, ATOMIC, MANY };
enum { CLOCKS = 2 * MOST_WARPS + MOST_PHASES };  // of a vector: warps, their products, mbarriers
#define PENDING 0xffffffffu  // an asynchronous copy is on its way here
#define OBJECT 0xfffffffeu   // an mbarrier is here
#define PARAM_WINDOW ((uint64_t)0x7ffc << 40)
#define SHARED_WINDOW ((uint64_t)0x7ffe << 40)
#define LOCAL_WINDOW ((uint64_t)0x7ffd << 40)
#define ALL_LANES 0xffffffffu

typedef struct { int32_t id, place; } Operand;
typedef struct {
    int32_t op, guard, guard_place, negated, results, count, first, line, target, join, aligned;
    int32_t aux[8];
} Instruction;
typedef struct {
    uint64_t base, size, shadow;  // shadow: of the first byte, in the arrays of marks
    uint8_t *host, *defined;
    uint32_t *writer, *reader;
    int64_t writable;
} Region;
typedef struct {
    const Instruction *code;
    const Operand *operands;
    const uint8_t *file;
    const uint32_t *defined;
    const int32_t *specials;
    const uint8_t *params;
    Region *regions;
    const int64_t *blocks;
    uint32_t *clock;
    char *message;
    void *counts;  // of every instruction (traffic.h), or NULL
    int64_t count, file_bytes, registers, special_count, param_bytes, region_count, block_count;
    int64_t message_bytes, shared_bytes, local_bytes, threads, grid, order, shared_shift;
    int64_t global_shift, budget, has_products, cluster;
} Launch;

struct Sectors;
typedef struct { int32_t pc, join; uint32_t mask; } Path;
// `arrival`: of the one that an mbarrier gets once the copy is there; 0: none was asked for.
typedef struct { uint32_t lane, place, size, group, arrival; uint8_t data[16]; } Copy;
typedef struct { const Instruction *insn; uint64_t a, b; int32_t group, adds; } Product;
// A copy in bulk: what it brings, to whom it is told. Into shared memory it is done once its bytes
// have been counted by an mbarrier, out of it once its group is waited for.
typedef struct {
    uint8_t *data;
    uint64_t *places, *targets;  // of chunks: in shared memory; in global memory, ~0 outside
    int64_t chunks, size;
    int phase, is_store;
    uint32_t group, lane;
    struct Warp *warp;
} Bulk;
// An mbarrier: arrivals and bytes that its phase lacks, and what those that came have seen.
typedef struct {
    uint64_t place;
    uint32_t made;
    int is_live, is_fenced;
    int64_t expected, pending, bytes, phase;
    uint32_t now[CLOCKS], past[CLOCKS];
} Phases;
// Arrivals of some lanes at an mbarrier that come with their copies, and what these lanes had done
// and seen when they asked for them.
typedef struct {
    struct Warp *warp;
    int phase;
    uint32_t mask, number, time, seen[CLOCKS];
} Arrival;
typedef enum { RUNNING, WAITING, POLLING, DONE } State;

typedef struct Warp {
    int id, rank, depth, barrier;
    State state;
    uint32_t live, time, product_time, least, seen[CLOCKS], fence_seen[CLOCKS];
    uint8_t *file, *local, *local_defined;
    uint32_t *defined, *busy, *changed, steps, fenced;
    Path paths[DEPTH];
    Copy *copies;
    int64_t copy_count, copy_room;
    uint32_t groups[LANES];  // of copies that each lane has committed
    Product *products;
    int64_t product_count, product_room;
    int32_t product_groups;
    int64_t issued;  // products so far, to compare with the other warps of the group
    const Instruction *at, *sums_of;
    int lane;
    uint32_t lost[8];  // lanes for which a load found nothing, by element
    int is_synced;  // lanes have met since the last barrier
    int inits_fenced;
    uint32_t bulk_groups[LANES];
    const Instruction *polled;  // a wait that has been told once that its phase is not over
    int64_t polled_phase, cluster_arrivals;
    uint64_t polled_place;
} Warp;

typedef struct {
    const Launch *launch;
    jmp_buf failed;
    int64_t block, stride;  // bytes of shared memory of a block of the cluster
    uint32_t launch_first, block_first;
    int warps, block_warps, blocks;
    Warp warp[MOST_WARPS];
    uint8_t *shared;
    uint32_t *writer, *reader, *fences;  // of shared memory; fences the writer had made
    uint32_t *readers;  // of pieces that many have read: when each warp did, and its products
    uint16_t *async_reads;  // products on their way that read a piece
    uint32_t *fence_times[MOST_THREADS], fence_counts[MOST_THREADS], fence_room[MOST_THREADS];
    struct { uint64_t warps; int64_t wanted; uint32_t value; } bars[MOST_BLOCKS][BARRIERS];
    Phases *phases;
    int phase_count;
    Bulk *bulks;
    int64_t bulk_count, bulk_room;
    Arrival *arrivals;
    int64_t arrival_count, arrival_room;
    uint32_t arrivals_asked;
    struct { int64_t generation; uint64_t warps; uint32_t now[CLOCKS], past[CLOCKS]; } cluster;
    int64_t moves;  // of what warps may wait for
    Product *log[MOST_WARPS / 4];
    int64_t log_count[MOST_WARPS / 4], log_room[MOST_WARPS / 4];
    int64_t left;  // instructions that the block may still do
    struct Sectors *touched;  // by the block, where accesses are counted
} Machine;

static void failed(Machine *m, const Warp *w, const char *format, ...)
{
    char text[600];
    va_list given;
    va_start(given, format);
    vsnprintf(text, sizeof text, format, given);
    va_end(given);
    snprintf(m->launch->message, m->launch->message_bytes, "%d\n%lld\n%d\n%s",
             w && w->at ? w->at->line : 0, (long long)m->block + (w ? w->rank : 0),
             w ? w->id % m->block_warps * LANES + (w->lane < 0 ? 0 : w->lane) : 0, text);
    longjmp(m->failed, 1);
}

static void *grown(Machine *m, void *list, int64_t count, int64_t *room, size_t size)
{
    if (count < *room) return list;
    *room = *room ? 2 * *room : 64;
    list = realloc(list, *room * size);
    if (list == NULL) failed(m, NULL, "the machine has no memory left");
    return list;
}

static uint32_t tag_of(const Warp *w, int who)
{ return (who >= BY_PRODUCTS && who < BY_COPIES ? w->product_time : w->time) << THREAD_BITS | who; }

// The clock of a vector that tells what one has done.
static int clock_of(uint32_t who)
{ return who < BY_PRODUCTS ? who / LANES : who - BY_PRODUCTS + MOST_WARPS; }

// Whether what a tag tells came before what a thread of a warp does now.
static int is_ordered(const Machine *m, const Warp *w, uint32_t tag, int thread)
{
    const uint32_t time = tag >> THREAD_BITS, who = tag & ((1 << THREAD_BITS) - 1);
    if (tag >= OBJECT) return 0;
    if (time < m->launch_first) return 1;
    if (time < m->block_first || who == BLOCKS) return 0;
    if (who == (uint32_t)thread) return 1;
    if (who == MANY || who == ATOMIC) return time < w->least;
    if (who == (uint32_t)(BY_PRODUCTS + w->id)) return 1;
    return time < w->seen[clock_of(who)] || (w->is_synced && (int)who / LANES == w->id);
}

static const char *told(char *text, const Machine *m, uint32_t tag)
{
    const uint32_t time = tag >> THREAD_BITS, who = tag & ((1 << THREAD_BITS) - 1);
    if (time < m->block_first || who == BLOCKS) return "another block";
    if (who == MANY) return "several threads";
    if (who == ATOMIC) return "an atomic operation";
    if (who >= BY_COPIES) return "a copy in bulk";
    if (who >= BY_PRODUCTS) snprintf(text, 40, "a product of warp %u", who - BY_PRODUCTS);
    else snprintf(text, 40, "thread %u", who % (m->block_warps * LANES));
    return text;
}
