// Threads as fibres, barriers, and the launch of a grid.

namespace simulator {

static Thread &current() { return block.threads[thread_number()]; }

static bool awaits_phases() { return current().awaits; }

// The thread at hand, by its number among those of its cluster.
static void become(unsigned number)
{
    block.rank = number / blockDim.x;
    threadIdx = Dim{number % blockDim.x, 0, 0};
    blockIdx = Dim{blockIdx.x / block.ranks * block.ranks + block.rank, 0, 0};
}

// Notes that this thread has written what products of warp groups cannot see yet.
static void note_unshared()
{
    if (!current().unshared) {
        current().unshared = true;
        current().unshared_epoch = block.epoch();
    }
}

static void start(Thread &thread);

// From the scheduler to the current thread, until that waits or is done.
static void resume()
{
    if (_setjmp(block.scheduler) == 0) {
        Thread &thread = current();
        if (thread.stack) {
            _longjmp(thread.place, 1);
        }
        start(thread);
    }
}

// From the current thread to the scheduler, until it is resumed.
static void suspend()
{
    if (_setjmp(current().place) == 0) {
        _longjmp(block.scheduler, 1);
    }
}

static void wait(State state)
{
    const unsigned self = thread_number();
    current().state = state;
    suspend();
    become(self);
    if (!fault.empty()) {
        throw Fault();
    }
}

static void fibre()
{
    for (;;) {
        try {
            block.kernel();
        } catch (const Fault &) {
        }
        current().state = State::done;
        suspend();
    }
}

// Enters a thread for the first time.
static void start(Thread &thread)
{
    thread.stack.reset(new char[STACK_BYTES]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = STACK_BYTES;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, fibre, 0);
    setcontext(&thread.context);
}

// Lets the threads of a block go on, or of all blocks of a cluster, that have all come to a barrier.
static bool release_barriers()
{
    bool released = false;
    for (unsigned rank = 0; rank < block.ranks; ++rank) {
        const auto first = block.threads.begin() + rank * blockDim.x, last = first + blockDim.x;
        const auto waits = [](const Thread &t) { return t.state == State::at_barrier; };
        if (std::all_of(first, last, waits)) {
            std::for_each(first, last, [](Thread &t) { t.state = State::ready; });
            ++block.epochs[rank];
            released = true;
        }
    }
    const auto met = [](const Thread &t) { return t.state == State::at_cluster; };
    if (std::all_of(block.threads.begin(), block.threads.end(), met)) {
        for (Thread &thread : block.threads) {
            thread.state = State::ready;
        }
        const unsigned last = *std::max_element(block.epochs, block.epochs + block.ranks);
        std::fill_n(block.epochs, block.ranks, last + 1);
        released = true;
    }
    return released;
}

// Lets the lanes of a warp go on that wait for one another and have all arrived.
static bool release_warps()
{
    bool released = false;
    for (unsigned first = 0; first < block.threads.size(); first += WARP) {
        const unsigned lanes = std::min<size_t>(WARP, block.threads.size() - first);
        const unsigned exist = lanes == WARP ? 0xffffffffu : (1u << lanes) - 1u;
        for (unsigned lane = 0; lane < lanes; ++lane) {
            const unsigned mask = block.threads[first + lane].mask & exist;
            const bool orders = block.threads[first + lane].orders;
            if (block.threads[first + lane].state != State::at_warp) {
                continue;
            }
            bool complete = true;
            for (unsigned other = 0; other < lanes; ++other) {
                const Thread &thread = block.threads[first + other];
                complete &= !(mask >> other & 1u) ||
                            (thread.state == State::at_warp && (thread.mask & exist) == mask &&
                             thread.orders == orders);
            }
            for (unsigned other = 0; complete && other < lanes; ++other) {
                if (mask >> other & 1u) {
                    block.threads[first + other].state = State::ready;
                }
            }
            released |= complete;
            block.warp_epoch[first / WARP] += complete && mask == exist && orders;
        }
    }
    return released;
}

// Lets threads look again that wait for a phase of an mbarrier, once one is over.
static bool release_polling()
{
    bool released = false;
    for (Thread &thread : block.threads) {
        if (block.moves != 0 && thread.state == State::polling) {
            thread.state = State::ready;
            released = true;
        }
    }
    block.moves = 0;
    return released;
}

static void fail_stuck()
{
    for (unsigned number = 0; number < block.threads.size(); ++number) {
        become(number);
        const State state = block.threads[number].state;
        if (state == State::done && fault.empty()) {
            fault = "thread " + std::to_string(threadIdx.x) + " of block " +
                    std::to_string(blockIdx.x) + " ended while others wait for it";
        }
    }
    if (fault.empty()) {
        fault = "threads of block " + std::to_string(blockIdx.x) + " wait at different barriers";
    }
    for (unsigned number = 0; number < block.threads.size(); ++number) {
        become(number);
        if (current().state != State::done) {  // let it unwind
            resume();
        }
    }
}

static void run_fibres(const std::vector<unsigned> &order)
{
    for (Thread &thread : block.threads) {
        thread.state = State::ready;
        thread.exchange = Exchange();
        thread.copies.clear();
        thread.batch = 0;
        thread.products.clear();
        thread.product_batch = 0;
        thread.begun = thread.awaits = thread.unshared = false;
    }
    for (;;) {
        for (unsigned number : order) {
            become(number);
            if (current().state == State::ready) {
                resume();
            }
        }
        const auto is_done = [](const Thread &t) { return t.state == State::done; };
        if (std::all_of(block.threads.begin(), block.threads.end(), is_done)) {
            return;
        }
        if (fault.empty() && release_barriers()) {
            Profile::end_interval();
        } else if (!fault.empty() || !(release_warps() | release_polling())) {
            fail_stuck();
            return;
        }
    }
}

static void run_plainly(const std::vector<unsigned> &order)
{
    for (unsigned number : order) {
        become(number);
        try {
            block.kernel();
        } catch (const Fault &) {
            return;
        }
    }
}

// 0: ascending, 1: descending, others: shuffled by that seed.
static std::vector<unsigned> order_of(unsigned count, unsigned order)
{
    std::vector<unsigned> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0u);
    if (order == 1) {
        std::reverse(numbers.begin(), numbers.end());
    } else if (order > 1) {
        std::shuffle(numbers.begin(), numbers.end(), std::mt19937(order));
    }
    return numbers;
}

// Runs a grid. `fibres`: threads wait for one another; `ranks`: blocks of a cluster.
static const char *launch(std::function<void()> kernel, unsigned grid, unsigned threads,
                          unsigned order, bool fibres, unsigned shared, unsigned ranks)
{
    fault.clear();
    gridDim = Dim{grid, 1, 1};
    blockDim = Dim{threads, 1, 1};
    block.kernel = std::move(kernel);
    block.shared = shared;
    block.early = order % 2 == 1;
    block.ranks = ranks;
    block.threads.resize(threads * ranks);
    block.warp_epoch.assign((threads * ranks + WARP - 1) / WARP, 0);
    const std::vector<unsigned> thread_order = order_of(threads * ranks, order);
    unsigned blocks = 0;
    for (unsigned number : order_of(grid / ranks, order)) {
        blockIdx = Dim{number * ranks, 0, 0};
        ++block.serial;
        std::fill_n(block.epochs, ranks, 0u);
        block.phases.clear();
        block.moves = 0;
        if (fibres) {
            run_fibres(thread_order);
        } else {
            run_plainly(thread_order);
        }
        Profile::end_block();
        if (!fault.empty() || Profile::is_enough(blocks += ranks)) {
            break;
        }
    }
    return fault.empty() ? nullptr : fault.c_str();
}

}  // namespace simulator
