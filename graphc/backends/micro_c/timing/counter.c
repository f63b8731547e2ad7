/* A plugin of QEMU (TCG, API versions 1 and 2): for every layer, how often each block of code ran
 * and was left by a jump, and how many reads missed the caches of a chip's flash.
 *
 * Arguments: marks=ADDRESS,layers=N,flash=FIRST-END,out=FILE,icache=BYTES/LINE/WAYS,
 * dcache=BYTES/LINE/WAYS, data=cached (through the icache), data=uncached (each read misses).
 * A read of byte 2L of `marks` begins layer L, of 2L+1 ends it; layer N is all else of a run, and
 * what runs outside of it is not told.
 *
 * Lines of the output: `block LAYER FIRST LAST RUNS JUMPS`, where FIRST and LAST are the addresses
 * of its first and last instruction; `misses LAYER FETCHES READS`.
 *
 * The few functions of QEMU are declared here, so that its headers are not needed.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;
void qemu_plugin_register_vcpu_tb_trans_cb(
    qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(
    struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_mem_cb(
    struct qemu_plugin_insn *, void (*)(unsigned, uint32_t, uint64_t, void *), int, int, void *);
void qemu_plugin_register_atexit_cb(
    qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
_Bool qemu_plugin_mem_is_store(uint32_t);

#ifndef API_VERSION
#define API_VERSION 1
#endif
int qemu_plugin_version = API_VERSION;

#define BLOCKS 65536
#define ANY_ACCESS 3 /* QEMU_PLUGIN_MEM_RW: some versions mix up the other two */

typedef struct {
    uint64_t first, last, end;
} Block;
typedef struct {
    uint64_t runs, jumps;
} Count;
typedef struct {
    uint64_t fetches, reads;
} Misses;
typedef struct {
    uint64_t lines, line, ways;
    uint64_t *tags; /* line number + 1 of each way, the latest first */
} Cache;

static Block blocks[BLOCKS];
static uint32_t known;
static Count **counts;
static Misses *misses;
static uint64_t marks, layers, flash_first, flash_end;
static uint64_t layer, fetched;
static Cache icache, dcache;
static int shared, uncached;
static FILE *out;
static Count *last_count;
static uint64_t last_end;

/* Whether the line was there; it is then, as the latest of its set. */
static int hit(Cache *cache, uint64_t line)
{
    uint64_t *set = cache->tags + (line % (cache->lines / cache->ways)) * cache->ways;
    uint64_t n = 0;
    while (n + 1 < cache->ways && set[n] != line + 1) {
        ++n;
    }
    const int found = set[n] == line + 1;
    memmove(set + 1, set, n * sizeof *set);
    set[0] = line + 1;
    return found;
}

static int in_flash(uint64_t address)
{
    return address >= flash_first && address < flash_end;
}

static void on_block(unsigned cpu, void *data)
{
    const Block *block = data;
    const uint64_t number = (uint64_t)(block - blocks);
    uint64_t line;
    (void)cpu;
    if (counts[layer] == NULL) {
        counts[layer] = calloc(BLOCKS, sizeof **counts);
    }
    if (last_count != NULL && last_end != block->first) {
        ++last_count->jumps;
    }
    last_count = &counts[layer][number];
    last_end = block->end;
    ++last_count->runs;
    if (icache.lines == 0 || !in_flash(block->first)) {
        return;
    }
    for (line = block->first / icache.line; line <= (block->end - 1) / icache.line; ++line) {
        if (line != fetched && !hit(&icache, line)) {
            ++misses[layer].fetches;
        }
        fetched = line;
    }
}

static void on_read(unsigned cpu, uint32_t info, uint64_t address, void *data)
{
    Cache *cache = shared ? &icache : &dcache;
    (void)cpu;
    (void)data;
    if (qemu_plugin_mem_is_store(info)) {
        return;
    }
    if (address - marks < 2 * layers + 2) {
        const uint64_t mark = address - marks;
        layer = mark > 2 * layers ? layers + 1 : mark % 2 ? layers : mark / 2;
    }
    if (!in_flash(address)) {
        return;
    }
    if (uncached || (cache->lines != 0 && !hit(cache, address / cache->line))) {
        ++misses[layer].reads;
    }
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    const size_t n = qemu_plugin_tb_n_insns(tb);
    struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, n - 1);
    Block block;
    uint32_t at = 0;
    size_t i;
    (void)id;
    block.first = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
    block.last = qemu_plugin_insn_vaddr(last);
    block.end = block.last + qemu_plugin_insn_size(last);
    while (at < known && (blocks[at].first != block.first || blocks[at].end != block.end)) {
        ++at;
    }
    if (at == BLOCKS) {
        fprintf(stderr, "too many blocks of code\n");
        exit(3);
    }
    if (at == known) {
        blocks[known++] = block;
    }
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, 0, &blocks[at]);
    for (i = 0; i < n; ++i) {
        qemu_plugin_register_vcpu_mem_cb(
            qemu_plugin_tb_get_insn(tb, i), on_read, 0, ANY_ACCESS, NULL);
    }
}

static void on_exit_(qemu_plugin_id_t id, void *data)
{
    uint64_t l;
    uint32_t b;
    (void)id;
    (void)data;
    for (l = 0; l <= layers; ++l) {
        for (b = 0; counts[l] != NULL && b < known; ++b) {
            if (counts[l][b].runs != 0) {
                fprintf(out, "block %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                        l, blocks[b].first, blocks[b].last, counts[l][b].runs, counts[l][b].jumps);
            }
        }
        fprintf(out, "misses %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                l, misses[l].fetches, misses[l].reads);
    }
    fclose(out);
}

static void read_cache(Cache *cache, const char *text)
{
    uint64_t bytes = 0;
    if (sscanf(text, "%" SCNu64 "/%" SCNu64 "/%" SCNu64, &bytes, &cache->line, &cache->ways) == 3) {
        cache->lines = bytes / cache->line;
        cache->tags = calloc(cache->lines, sizeof *cache->tags);
    }
}

int qemu_plugin_install(
    qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
    int i;
    (void)info;
    for (i = 0; i < argc; ++i) {
        if (!strncmp(argv[i], "marks=", 6)) {
            marks = strtoull(argv[i] + 6, NULL, 0);
        } else if (!strncmp(argv[i], "layers=", 7)) {
            layers = strtoull(argv[i] + 7, NULL, 0);
        } else if (!strncmp(argv[i], "flash=", 6)) {
            sscanf(argv[i] + 6, "%" SCNu64 "-%" SCNu64, &flash_first, &flash_end);
        } else if (!strncmp(argv[i], "icache=", 7)) {
            read_cache(&icache, argv[i] + 7);
        } else if (!strncmp(argv[i], "dcache=", 7)) {
            read_cache(&dcache, argv[i] + 7);
        } else if (!strcmp(argv[i], "data=cached")) {
            shared = 1;
        } else if (!strcmp(argv[i], "data=uncached")) {
            uncached = 1;
        } else if (!strncmp(argv[i], "out=", 4)) {
            out = fopen(argv[i] + 4, "w");
        }
    }
    if (out == NULL) {
        return -1;
    }
    counts = calloc(layers + 2, sizeof *counts);
    misses = calloc(layers + 2, sizeof *misses);
    layer = layers + 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, on_exit_, NULL);
    return 0;
}
