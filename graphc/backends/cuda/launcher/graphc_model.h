// Runs a launch plan through CUDA's runtime library.
//
// Weights are uploaded once and there is one arena. The first run launches kernels one after
// another, each waited for, so that a fault names its kernel; the second captures copies and
// launches as a graph, independent branches on streams of their own, which later runs replay, until
// other sizes are set. Where data decides what is done (loops with conditions, branches, sizes), the
// host waits for that in each run, and nothing is captured.
// A Model may be used by one thread at a time. Failures are thrown as graphc::Error.
//
// A program of several models has several copies of this file: the first is as good as any.
#ifndef GRAPHC_MODEL_H
#define GRAPHC_MODEL_H

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace graphc {

// What failed: a call of the runtime or a kernel, and the reason.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A size of a model of open shape.
struct Size {
    const char *name;
    int64_t low, high;
};

// An input or output: contiguous, in C's order; of a model of open shape, at the largest sizes.
struct Tensor {
    const char *name;
    const char *type;  // f32, i64, ...
    int rank;
    const int64_t *shape;
    size_t bytes;
};

enum class Space { input, output, weights, arena };

// A parameter of a kernel: a pointer into an input or output (by number), the weights or the arena.
struct Argument {
    Space space;
    int number;
    size_t offset;  // in bytes
};

// The same place so many bytes further.
inline Argument moved(Argument place, int64_t bytes)
{
    place.offset += size_t(bytes);
    return place;
}

// A tensor in an argument of a launch, of which the kernel copies boxes: bytes of its elements, its
// extents, innermost first, bytes from one to the next of all but the first, extents of a box.
struct Map {
    int argument;
    size_t offset;
    int element;
    unsigned rank;
    uint64_t dims[5], strides[5];
    uint32_t box[5];
};

// What the driver makes of it.
struct alignas(128) TensorMap {
    unsigned char bytes[128];
};

// A launch. `waits` numbers launches on other streams that must be done; `awaited`: another stream
// waits for this one.
struct Launch {
    const void *function;
    const char *name;
    unsigned grid[3], block[3];
    size_t shared;
    const Argument *arguments;
    int argument_count;
    int size_count;  // numbers that follow the arguments
    int stream;
    const int *waits;
    int wait_count;
    bool awaited;
    const Map *maps;  // given last
    int map_count;
};

// What must hold of values that a model computes with (indices, say). Its number in the tensor that
// comes after the outputs, added to `low`, is an offending value if it is more than `most`.
struct Check {
    uint64_t low, most;
    const char *before, *after;  // the message, around the value, if it tells that
    bool tells;
};

class Steps;

struct Plan {
    const char *name;
    const Tensor *inputs;
    int input_count;
    const Tensor *outputs;
    int output_count;
    const Launch *launches;
    int launch_count;
    int stream_count;
    size_t arena_bytes, weights_bytes;
    uint64_t weights_sum;  // what sum_of gives for the weights
    const Check *checks;
    int check_count;
    const Size *sizes;
    int size_count;
    // What depends on sizes: for each input, then each output, its extents and its bytes; for each
    // launch its blocks and the numbers that follow its arguments. Null if there are no sizes.
    void (*numbers)(const int64_t *sizes, int64_t *numbers);
    int number_count;
    int count_count;  // sizes after the others, which data decides in the course of a run
    // Does the steps of a run, if these are more than all launches in order.
    void (*steps)(Steps &run, const int64_t *sizes);
    bool captured;  // whether that is the same in each run, and may be replayed
};

// The quotient rounded down, and what is left; of a divisor above 0.
inline int64_t floor_divided(int64_t a, int64_t b) { return a / b - (a % b < 0); }
inline int64_t floor_left(int64_t a, int64_t b) { return a - floor_divided(a, b) * b; }

// A sum over bytes that shows damage. For each 64 KiB: the sum of all 32-bit words (little endian,
// the last one filled up with zeros), each times an odd factor of its place; all of these folded.
inline uint64_t sum_of(const std::vector<char> &bytes)
{
    const size_t chunk = 65536;
    std::vector<uint32_t> factors(chunk / 4);
    for (size_t n = 0; n < factors.size(); ++n) {  // SplitMix64
        uint64_t state = (n + 1) * 0x9E3779B97F4A7C15ull;
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
        state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
        factors[n] = uint32_t((state ^ (state >> 31)) >> 32) | 1u;
    }
    uint64_t result = bytes.size();
    for (size_t start = 0; start < bytes.size(); start += chunk) {
        const size_t size = bytes.size() - start < chunk ? bytes.size() - start : chunk;
        uint64_t sum = 0;
        uint32_t word = 0;
        for (size_t n = 0; n < size / 4; ++n) {
            memcpy(&word, bytes.data() + start + 4 * n, 4);
            sum += uint64_t(word) * factors[n];
        }
        if (size % 4 != 0) {
            word = 0;
            memcpy(&word, bytes.data() + start + size / 4 * 4, size % 4);
            sum += uint64_t(word) * factors[size / 4];
        }
        result = (result ^ sum) * 0x9E3779B97F4A7C15ull;
    }
    return result;
}

inline void check(cudaError_t status, const std::string &what);

// The map of a tensor at an address, as the driver makes it: lines of a box are 128 bytes,
// swizzled, and elements outside are zero.
inline TensorMap tensor_map(const Map &map, const char *address)
{
    typedef int Encode(void *, int type, unsigned rank, void *address, const uint64_t *dims,
                       const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                       int interleave, int swizzle, int promotion, int outside);
    static Encode *const encode = [] {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                               cudaEnableDefault, &result),
              "cuTensorMapEncodeTiled");
#else
        check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result),
              "cuTensorMapEncodeTiled");
#endif
        if (found == nullptr || result != cudaDriverEntryPointSuccess) {
            throw std::runtime_error("the driver has no cuTensorMapEncodeTiled; update it");
        }
        return reinterpret_cast<Encode *>(found);
    }();
    const uint32_t steps[5] = {1, 1, 1, 1, 1};
    const int bits = map.element == 1 ? 0 : map.element == 2 ? 1 : 2;  // UINT8, UINT16, UINT32
    TensorMap made;
    const int status = encode(&made, bits, map.rank, const_cast<char *>(address), map.dims,
                              map.strides, map.box, steps, 0, 3 /* 128 bytes */, 3, 0);
    check(static_cast<cudaError_t>(status), "map of a tensor");
    return made;
}

inline void check(cudaError_t status, const std::string &what)
{
    if (status != cudaSuccess) {
        throw Error(what + ": " + cudaGetErrorString(status));
    }
}

class Model {
  public:
    // `weights` is the path of weights.bin.
    Model(const Plan &plan, const std::string &weights, int device = 0)
        : plan(plan), device(device), branches(plan.stream_count), events(plan.launch_count)
    {
        const std::vector<char> contents = read(weights, plan.weights_bytes);
        if (sum_of(contents) != plan.weights_sum) {
            throw Error(weights + ": is damaged, or of another model");
        }
        try {
            check(cudaSetDevice(device), "device " + std::to_string(device));
            check(cudaStreamCreate(&main_stream), "stream");
            for (cudaStream_t &branch : branches) {
                check(cudaStreamCreateWithFlags(&branch, cudaStreamNonBlocking), "stream");
            }
            for (int n = 0; n < plan.launch_count; ++n) {
                prepare(plan.launches[n], events[n]);
            }
            check(cudaEventCreateWithFlags(&start, cudaEventDisableTiming), "event");
            arena = allocate(plan.arena_bytes);
            weights_on_device = allocate(plan.weights_bytes);
            check(cudaMemcpy(weights_on_device, contents.data(), contents.size(),
                             cudaMemcpyHostToDevice),
                  "weights");
            place(plan.inputs, plan.input_count, inputs, staged_inputs);
            place(plan.outputs, all_outputs(), outputs, staged_outputs);
            void *memory = nullptr;
            check(cudaMallocHost(&memory, sizeof *word), "pinned");
            host_memory.push_back(memory);
            word = static_cast<int64_t *>(memory);
            std::vector<int64_t> largest;
            for (int n = 0; n < plan.size_count; ++n) {
                largest.push_back(plan.sizes[n].high);
            }
            set_sizes(largest.data());
        } catch (...) {
            close();
            throw;
        }
    }

    ~Model() { close(); }

    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    // Sets the sizes of the runs to come, in the order of plan.sizes; at first they are the largest.
    // Error tells of one that is out of bounds.
    void set_sizes(const int64_t *given)
    {
        for (int n = 0; n < plan.size_count; ++n) {
            const Size &size = plan.sizes[n];
            if (given[n] < size.low || given[n] > size.high) {
                throw Error(std::string("size ") + size.name + " = " + std::to_string(given[n]) +
                            " is not in " + std::to_string(size.low) + ".." +
                            std::to_string(size.high));
            }
        }
        const std::vector<int64_t> before = sizes;
        sizes.assign(given, given + plan.size_count);
        for (int n = 0; n < plan.count_count; ++n) {
            sizes.push_back(plan.sizes[plan.size_count + n].high);
        }
        if (plan.numbers != nullptr && before != sizes) {
            read_numbers();
            runs = 0;
            if (graph != nullptr) {
                cudaGraphExecDestroy(graph);
                graph = nullptr;
            }
        }
    }

    // The shape of an input or output at the sizes that are set, and its bytes. Where data decides
    // sizes, an output takes room for the largest, which is its shape before a run; afterwards it is
    // that of the result.
    std::vector<int64_t> input_shape(int number) const
    {
        return plan.numbers ? input_at[size_t(number)].shape : shape_of(plan.inputs[number]);
    }
    std::vector<int64_t> output_shape(int number) const
    {
        return plan.numbers ? output_at[size_t(number)].shape : shape_of(plan.outputs[number]);
    }
    size_t input_bytes(int number) const
    {
        return plan.numbers ? input_at[size_t(number)].bytes : plan.inputs[number].bytes;
    }
    size_t output_bytes(int number) const
    {
        return plan.numbers ? output_at[size_t(number)].bytes : plan.outputs[number].bytes;
    }

    // Runs on arrays of the host, and waits. They are as plan.inputs and plan.outputs say, of a
    // model of open shape as input_shape and output_shape say. Error tells of a value that the model forbids, as an index out of range; no result is then written.
    void run(const void *const *values, void *const *results)
    {
        check(cudaSetDevice(device), "device");
        for (int n = 0; n < plan.input_count; ++n) {
            memcpy(staged_inputs[n], values[n], input_bytes(n));
        }
        if (runs == 0 || !plan.captured) {
            one_by_one();
        } else {
            if (runs == 1) {
                capture();
            }
            check(cudaGraphLaunch(graph, main_stream), plan.name);
        }
        ++runs;
        check(cudaStreamSynchronize(main_stream), plan.name);
        judge();
        for (int n = 0; n < plan.output_count; ++n) {
            memcpy(results[n], staged_outputs[n], output_bytes(n));
        }
    }

    // Launches all kernels on arrays of the device, aligned to 16 bytes, in the order of a stream;
    // does not wait, unless data decides what is done. The next run of this model must come after
    // it. `verify` says afterwards whether all values were as the model needs them.
    void enqueue(const void *const *values, void *const *results, cudaStream_t stream)
    {
        std::vector<void *> all(results, results + plan.output_count);
        all.insert(all.end(), outputs.begin() + plan.output_count, outputs.end());
        perform(values, all.data(), stream, false);
    }

    // Waits for what was enqueued in a stream. Error tells of a value that the model forbids.
    void verify(cudaStream_t stream)
    {
        if (plan.check_count != 0) {
            const int last = plan.output_count;
            check(cudaMemcpyAsync(staged_outputs[last], outputs[last], plan.outputs[last].bytes,
                                  cudaMemcpyDeviceToHost, stream),
                  plan.outputs[last].name);
        }
        check(cudaStreamSynchronize(stream), plan.name);
        judge();
    }

  private:
    friend class Steps;

    const Plan &plan;
    const int device;
    cudaStream_t main_stream = nullptr;
    std::vector<cudaStream_t> branches;  // for captures: apart from the default stream
    std::vector<cudaEvent_t> events;  // null for launches that no other stream awaits
    cudaEvent_t start = nullptr;
    char *arena = nullptr, *weights_on_device = nullptr;
    std::vector<void *> inputs, outputs, staged_inputs, staged_outputs, device_memory, host_memory;
    cudaGraphExec_t graph = nullptr;
    uint64_t runs = 0;  // since the sizes were set
    bool proven = false;  // whether a run has waited for every kernel

    struct At {
        std::vector<int64_t> shape;
        size_t bytes;
    };
    std::vector<int64_t> sizes;
    std::vector<int64_t> numbers;  // what depends on sizes
    int64_t *word = nullptr;  // pinned, for what is read back
    std::vector<At> input_at, output_at;
    std::vector<const int64_t *> launch_at;  // blocks, and what follows the arguments

    static std::vector<int64_t> shape_of(const Tensor &tensor)
    {
        return std::vector<int64_t>(tensor.shape, tensor.shape + tensor.rank);
    }

    void read_numbers()
    {
        numbers.assign(size_t(plan.number_count), 0);
        plan.numbers(sizes.data(), numbers.data());
        const int64_t *next = numbers.data();
        input_at.clear();
        output_at.clear();
        launch_at.clear();
        for (int n = 0; n < plan.input_count + all_outputs(); ++n) {
            const bool is_input = n < plan.input_count;
            const Tensor &tensor = is_input ? plan.inputs[n] : plan.outputs[n - plan.input_count];
            At at{std::vector<int64_t>(next, next + tensor.rank), size_t(next[tensor.rank])};
            (is_input ? input_at : output_at).push_back(at);
            next += tensor.rank + 1;
        }
        for (int n = 0; n < plan.launch_count; ++n) {
            launch_at.push_back(next);
            next += 1 + plan.launches[n].size_count;
        }
    }

    // The tensor of checks comes after the outputs of the model.
    int all_outputs() const { return plan.output_count + (plan.check_count != 0); }

    void judge() const
    {
        for (int n = 0; n < plan.check_count; ++n) {
            const Check &each = plan.checks[n];
            const uint64_t key = static_cast<const uint64_t *>(staged_outputs[plan.output_count])[n];
            if (key > each.most) {
                const std::string value = std::to_string(int64_t(each.low + key));
                throw Error(each.before + (each.tells ? value : "") + each.after);
            }
        }
    }

    static std::vector<char> read(const std::string &path, size_t bytes)
    {
        std::vector<char> contents(bytes);
        std::ifstream file(path, std::ios::binary);
        if (!file.read(contents.data(), std::streamsize(bytes)) ||
            file.peek() != std::ifstream::traits_type::eof()) {
            throw Error(path + ": cannot be read, or is not " + std::to_string(bytes) + " bytes");
        }
        return contents;
    }

    void prepare(const Launch &launch, cudaEvent_t &event)
    {
        if (launch.shared != 0) {
            check(cudaFuncSetAttribute(launch.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       int(launch.shared)),
                  launch.name);
        }
        if (launch.awaited) {
            check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
        }
    }

    char *allocate(size_t bytes)
    {
        void *memory = nullptr;
        check(cudaMalloc(&memory, bytes ? bytes : 1), std::to_string(bytes) + " bytes");
        device_memory.push_back(memory);
        return static_cast<char *>(memory);
    }

    // Memory for tensors on the device, and pinned memory of the host to copy from or to.
    void place(const Tensor *tensors, int count, std::vector<void *> &places,
               std::vector<void *> &staged)
    {
        for (int n = 0; n < count; ++n) {
            places.push_back(allocate(tensors[n].bytes));
            void *memory = nullptr;
            check(cudaMallocHost(&memory, tensors[n].bytes ? tensors[n].bytes : 1), "pinned");
            host_memory.push_back(memory);
            staged.push_back(memory);
        }
    }

    void upload(cudaStream_t stream)
    {
        for (int n = 0; n < plan.input_count; ++n) {
            check(cudaMemcpyAsync(inputs[n], staged_inputs[n], input_bytes(n),
                                  cudaMemcpyHostToDevice, stream),
                  plan.inputs[n].name);
        }
    }

    void download(cudaStream_t stream)
    {
        for (int n = 0; n < all_outputs(); ++n) {
            check(cudaMemcpyAsync(staged_outputs[n], outputs[n], output_bytes(n),
                                  cudaMemcpyDeviceToHost, stream),
                  plan.outputs[n].name);
        }
    }

    char *address(const Argument &argument, const void *const *values, void *const *results) const
    {
        const void *base = argument.space == Space::input    ? values[argument.number]
                           : argument.space == Space::output ? results[argument.number]
                           : argument.space == Space::arena  ? arena
                                                             : weights_on_device;
        return static_cast<char *>(const_cast<void *>(base)) + argument.offset;
    }

    // `trip`, if there is one, is given after the numbers of a launch.
    void launch(int which, const void *const *values, void *const *results, cudaStream_t stream,
                const int64_t *trip = nullptr)
    {
        const Launch &launch = plan.launches[which];
        dim3 grid(launch.grid[0], launch.grid[1], launch.grid[2]);
        std::vector<int64_t> further;
        if (plan.numbers != nullptr) {
            const int64_t *at = launch_at[size_t(which)];
            grid = dim3(unsigned(at[0]), 1, 1);
            further.assign(at + 1, at + 1 + launch.size_count);
        }
        if (trip != nullptr) {
            further.push_back(*trip);
        }
        if (grid.x == 0) {
            return;
        }
        std::vector<const void *> pointers(launch.argument_count);
        std::vector<void *> parameters(launch.argument_count);
        for (int n = 0; n < launch.argument_count; ++n) {
            pointers[n] = address(launch.arguments[n], values, results);
            parameters[n] = &pointers[n];
        }
        for (int64_t &number : further) {
            parameters.push_back(&number);
        }
        std::vector<TensorMap> maps(size_t(launch.map_count));
        for (size_t n = 0; n < maps.size(); ++n) {
            const Map &map = launch.maps[n];
            maps[n] = tensor_map(map, static_cast<const char *>(pointers[map.argument]) + map.offset);
            parameters.push_back(&maps[n]);
        }
        check(cudaLaunchKernel(launch.function, grid,
                               dim3(launch.block[0], launch.block[1], launch.block[2]),
                               parameters.data(), launch.shared, stream),
              std::string("kernel ") + launch.name);
    }

    void one_by_one()
    {
        upload(main_stream);
        perform(inputs.data(), outputs.data(), main_stream, !proven);
        proven = true;
        download(main_stream);
    }

    // All launches and what is around them, in the order of a stream; `waits` for each.
    void perform(const void *const *values, void *const *results, cudaStream_t stream, bool waits);

    void capture()
    {
        cudaGraph_t recorded = nullptr;
        check(cudaStreamBeginCapture(branches[0], cudaStreamCaptureModeRelaxed), "capture");
        try {
            upload(branches[0]);
            if (plan.steps != nullptr) {
                perform(inputs.data(), outputs.data(), branches[0], false);
            } else {
                launch_branches();
            }
            download(branches[0]);
        } catch (...) {
            cudaStreamEndCapture(branches[0], &recorded);
            throw;
        }
        check(cudaStreamEndCapture(branches[0], &recorded), "capture");
        const cudaError_t status = cudaGraphInstantiateWithFlags(&graph, recorded, 0);
        cudaGraphDestroy(recorded);
        check(status, "graph");
    }

    // All launches, each on its stream and after those it depends on.
    void launch_branches()
    {
        std::vector<int> last(branches.size(), -1);
        check(cudaEventRecord(start, branches[0]), "event");
        for (int n = 0; n < plan.launch_count; ++n) {
            const Launch &each = plan.launches[n];
            const cudaStream_t branch = branches[each.stream];
            if (each.stream != 0 && last[each.stream] < 0) {
                check(cudaStreamWaitEvent(branch, start, 0), each.name);
            }
            for (int k = 0; k < each.wait_count; ++k) {
                check(cudaStreamWaitEvent(branch, events[each.waits[k]], 0), each.name);
            }
            launch(n, inputs.data(), outputs.data(), branch);
            if (each.awaited) {
                check(cudaEventRecord(events[n], branch), each.name);
            }
            last[each.stream] = n;
        }
        for (size_t s = 1; s < branches.size(); ++s) {
            check(cudaStreamWaitEvent(branches[0], events[last[s]], 0), "join");
        }
    }

    // After a failure of the device nothing can be given back; that is no further error.
    void close()
    {
        if (graph != nullptr) {
            cudaGraphExecDestroy(graph);
        }
        for (cudaEvent_t event : events) {
            if (event != nullptr) {
                cudaEventDestroy(event);
            }
        }
        if (start != nullptr) {
            cudaEventDestroy(start);
        }
        for (void *memory : device_memory) {
            cudaFree(memory);
        }
        for (void *memory : host_memory) {
            cudaFreeHost(memory);
        }
        branches.push_back(main_stream);
        for (cudaStream_t each : branches) {
            if (each != nullptr) {
                cudaStreamDestroy(each);
            }
        }
    }
};

// What the steps of a plan are made of, on a stream.
class Steps {
  public:
    Steps(Model &model, const void *const *values, void *const *results, cudaStream_t stream,
          bool waits)
        : model(model), values(values), results(results), stream(stream), waits(waits)
    {
    }

    void launch(int number, const int64_t *trip = nullptr)
    {
        model.launch(number, values, results, stream, trip);
        if (waits) {
            check(cudaStreamSynchronize(stream),
                  std::string("kernel ") + model.plan.launches[number].name);
        }
    }

    void copy(const Argument &target, const Argument &source, int64_t bytes)
    {
        if (bytes != 0) {
            check(cudaMemcpyAsync(address(target), address(source), size_t(bytes),
                                  cudaMemcpyDeviceToDevice, stream),
                  "copy");
        }
    }

    // A bool or an integer, once all that was asked for is done.
    bool holds(const Argument &place) { return read(place, 1) != 0; }
    int64_t number(const Argument &place) { return read(place, sizeof(int64_t)); }

    // Makes a number the value of a size that data decides.
    void count(int number, int64_t value)
    {
        model.sizes[size_t(model.plan.size_count + number)] = value;
        model.read_numbers();
    }

  private:
    Model &model;
    const void *const *values;
    void *const *results;
    const cudaStream_t stream;
    const bool waits;

    char *address(const Argument &place) const { return model.address(place, values, results); }

    int64_t read(const Argument &place, size_t bytes)
    {
        *model.word = 0;
        check(cudaMemcpyAsync(model.word, address(place), bytes, cudaMemcpyDeviceToHost, stream),
              "what is decided");
        check(cudaStreamSynchronize(stream), model.plan.name);
        return *model.word;
    }
};

inline void Model::perform(const void *const *values, void *const *results, cudaStream_t stream,
                           bool waits)
{
    Steps run(*this, values, results, stream, waits);
    if (plan.steps != nullptr) {
        plan.steps(run, sizes.data());
        return;
    }
    for (int n = 0; n < plan.launch_count; ++n) {
        run.launch(n);
    }
}

}  // namespace graphc

#endif
