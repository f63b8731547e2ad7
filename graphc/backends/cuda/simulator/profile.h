// Counts what the accesses of a kernel cost: put before the simulator where that is asked for.
//
// A request is what the lanes of a warp do at one place of the text, a site, in one iteration of the
// loops around it. Lanes run one after another, so requests are gathered until a barrier, or the end
// of the block, and counted then (profile.py says by which rules).
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#define SIMULATOR_PROFILES

namespace simulator {

constexpr unsigned LANES = 32, SECTOR = 32, WORD = 4, BANKS = 32;

// Of one site (see profile.py).
struct Counts {
    uint64_t requests = 0, bytes = 0;
    uint64_t sectors = 0, least_sectors = 0;
    uint64_t wavefronts = 0, least_wavefronts = 0;
};

struct Key {
    unsigned site, warp;
    uint64_t iteration;

    bool operator==(const Key &other) const
    {
        return site == other.site && warp == other.warp && iteration == other.iteration;
    }
};

struct HashOfKey {
    size_t operator()(const Key &key) const
    {
        return (key.iteration * 0x9e3779b97f4a7c15u + key.site) * 0x9e3779b97f4a7c15u + key.warp;
    }
};

enum class Kind { global, shared, shared_load };  // a load by lanes, not of matrices

// `at[lane]`: the address of a lane that takes part, of `size` bytes.
struct Request {
    Kind kind = Kind::global;
    unsigned size = 0;
    uint32_t lanes = 0;
    uint64_t at[LANES];
};

static std::vector<Counts> counts_of_sites;
static std::unordered_map<Key, Request, HashOfKey> requests;
static std::unordered_map<uint64_t, uint32_t> footprint;  // sectors of a block: which bytes it uses
static uint64_t footprint_sectors, footprint_bytes;       // of all blocks, each on its own
static unsigned most_blocks = ~0u;

// A sector or a word of memory, and which of its bytes are used.
struct Unit {
    uint64_t number;
    uint32_t bytes;
};

// What `count` lanes from `first` on touch, in order.
static std::vector<Unit> touched(const Request &request, unsigned unit, unsigned first,
                                 unsigned count)
{
    std::vector<Unit> all, units;
    for (unsigned lane = first; lane < first + count; ++lane) {
        const uint64_t end = request.at[lane] + request.size;
        for (uint64_t at = request.at[lane]; (request.lanes >> lane & 1u) && at < end;) {
            const uint64_t next = std::min(end, (at / unit + 1) * unit);
            all.push_back(Unit{at / unit, uint32_t((1ull << (next - at)) - 1) << at % unit});
            at = next;
        }
    }
    std::sort(all.begin(), all.end(), [](Unit a, Unit b) { return a.number < b.number; });
    for (const Unit &each : all) {
        if (units.empty() || units.back().number != each.number) {
            units.push_back(each);
        }
        units.back().bytes |= each.bytes;
    }
    return units;
}

static void count_sectors(const Request &request, Counts &counts)
{
    unsigned bytes = 0;
    for (const Unit &sector : touched(request, SECTOR, 0, LANES)) {
        bytes += __builtin_popcount(sector.bytes);
        counts.sectors += 1;
        footprint[sector.number] |= sector.bytes;
    }
    counts.least_sectors += (bytes + SECTOR - 1) / SECTOR;
}

// Whether lanes n and n ^ other take the same, where both take part.
static bool are_paired(const Request &request, unsigned other)
{
    for (unsigned lane = 0; lane < LANES; ++lane) {
        const bool both = request.lanes >> lane & request.lanes >> (lane ^ other) & 1u;
        if (both && request.at[lane] != request.at[lane ^ other]) {
            return false;
        }
    }
    return true;
}

static void count_wavefronts(const Request &request, Counts &counts)
{
    unsigned together = LANES / std::max(request.size / WORD, 1u);
    if (request.kind == Kind::shared_load && (are_paired(request, 1) || are_paired(request, 2))) {
        together = std::min(2 * together, LANES);
    }
    for (unsigned first = 0; first < LANES; first += together) {
        const std::vector<Unit> words = touched(request, WORD, first, together);
        unsigned of_bank[BANKS] = {};
        for (const Unit &word : words) {
            ++of_bank[word.number % BANKS];
        }
        counts.wavefronts += *std::max_element(of_bank, of_bank + BANKS);
        counts.least_wavefronts += (words.size() + BANKS - 1) / BANKS;
    }
}

struct Profile {
    // All threads have come to a barrier.
    static void end_interval()
    {
        for (const auto &[key, request] : requests) {
            Counts &counts = counts_of_sites[key.site];
            counts.requests += 1;
            counts.bytes += uint64_t(__builtin_popcount(request.lanes)) * request.size;
            request.kind == Kind::global ? count_sectors(request, counts)
                                         : count_wavefronts(request, counts);
        }
        requests.clear();
    }

    static void end_block()
    {
        end_interval();
        footprint_sectors += footprint.size();
        for (const auto &[sector, bytes] : footprint) {
            footprint_bytes += __builtin_popcount(bytes);
        }
        footprint.clear();
    }

    static bool is_enough(unsigned blocks) { return blocks >= most_blocks; }
};

// Where in the text an access is, and in which iteration of the loops around it. An access that is
// part of another one has no site.
struct Site {
    int number = -1;
    uint64_t iteration = 0;

    template <typename... P>
    static Site at(int number, P... passes)
    {
        Site site{number, 0};
        ((site.iteration = site.iteration * 0x100000001b3u + passes + 1), ...);
        return site;
    }

    void note(Kind kind, uint64_t address, size_t size, unsigned thread) const
    {
        if (number < 0) {
            return;
        }
        Request &request = requests[Key{unsigned(number), thread / LANES, iteration}];
        request.kind = kind;
        request.size = unsigned(size);
        request.lanes |= 1u << thread % LANES;
        request.at[thread % LANES] = address;
    }
};

}  // namespace simulator

// Begins the profile of one launch: all sites of the text, of which at most so many blocks run.
extern "C" void begin_profile(unsigned sites, unsigned blocks)
{
    simulator::counts_of_sites.assign(sites, simulator::Counts());
    simulator::footprint_sectors = simulator::footprint_bytes = 0;
    simulator::most_blocks = blocks;
}

extern "C" const simulator::Counts *profile_of_sites() { return simulator::counts_of_sites.data(); }
extern "C" uint64_t profiled_sectors() { return simulator::footprint_sectors; }
extern "C" uint64_t profiled_bytes() { return simulator::footprint_bytes; }
