// The functions of CUDA C that kernels call: barriers, shuffles, votes, atomic operations.

static inline void __syncthreads() { simulator::wait(simulator::State::at_barrier); }

namespace simulator {

// Waits for lanes of the warp. Only `__syncwarp` orders memory too; shuffles, votes and products of
// matrices do not (CUDA C++ Programming Guide, "Warp Shuffle Functions").
static inline void meet(unsigned mask, bool orders)
{
    current().mask = mask;
    current().orders = orders;
    wait(State::at_warp);
}

}  // namespace simulator

static inline void __syncwarp(unsigned mask = 0xffffffffu) { simulator::meet(mask, true); }

namespace simulator {

// Leaves a value for the warp, waits, and gives what `lane` of this warp left.
template <typename T>
static T exchange(unsigned mask, T value, unsigned lane)
{
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    Exchange &mine = current().exchange;
    const unsigned turn = mine.turn;
    mine.turn ^= 1u;
    memcpy(&mine.bits[turn], &value, sizeof(T));
    simulator::meet(mask, false);
    const unsigned source = thread_number() / WARP * WARP + lane;
    if (!(mask >> lane & 1u) || source >= block.threads.size()) {
        fail("shuffle from lane " + std::to_string(lane) + ", which takes no part");
    }
    memcpy(&value, &block.threads[source].exchange.bits[turn], sizeof(T));
    return value;
}

static inline unsigned lane() { return thread_number() % WARP; }

}  // namespace simulator

template <typename T>
static T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    const unsigned start = simulator::lane() / width * width;
    return simulator::exchange(mask, value, start + unsigned(lane) % width);
}

template <typename T>
static T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    const unsigned source = simulator::lane() ^ unsigned(lanes);
    const bool inside = source / width <= simulator::lane() / width;
    return simulator::exchange(mask, value, inside ? source : simulator::lane());
}

template <typename T>
static T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32)
{
    const bool inside = simulator::lane() % width + lanes < unsigned(width);
    return simulator::exchange(mask, value, simulator::lane() + (inside ? lanes : 0));
}

template <typename T>
static T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32)
{
    const bool inside = simulator::lane() % width >= lanes;
    return simulator::exchange(mask, value, simulator::lane() - (inside ? lanes : 0));
}

static unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned votes = 0;
    simulator::Exchange &mine = simulator::current().exchange;
    const unsigned turn = mine.turn;
    mine.turn ^= 1u;
    mine.predicate[turn] = predicate != 0;
    simulator::meet(mask, false);
    const unsigned first = simulator::thread_number() / simulator::WARP * simulator::WARP;
    for (unsigned lane = 0; lane < simulator::WARP; ++lane) {
        if ((mask >> lane & 1u) && first + lane < simulator::block.threads.size()) {
            votes |= unsigned(simulator::block.threads[first + lane].exchange.predicate[turn])
                     << lane;
        }
    }
    return votes;
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}

namespace simulator {

// What all atomic operations do: a place gets the value that its old one becomes, which is given.
template <typename T, typename Becomes>
static T updated(T *place, Becomes becomes)
{
    const T old = *place;
    *place = becomes(old);
    return old;
}

}  // namespace simulator

template <typename T>
static T atomicAdd(T *place, T value)
{
    return simulator::updated(place, [=](T old) { return T(old + value); });
}

template <typename T>
static T atomicMin(T *place, T value)
{
    return simulator::updated(place, [=](T old) { return value < old ? value : old; });
}

template <typename T>
static T atomicMax(T *place, T value)
{
    return simulator::updated(place, [=](T old) { return value > old ? value : old; });
}

template <typename T>
static T atomicExch(T *place, T value)
{
    return simulator::updated(place, [=](T) { return value; });
}

template <typename T>
static T atomicCAS(T *place, T expected, T value)
{
    return simulator::updated(place, [=](T old) { return old == expected ? value : old; });
}
