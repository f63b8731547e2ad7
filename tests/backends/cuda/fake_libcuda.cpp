// A driver library whose one GPU is the host simulator, to run bindings against: device memory is
// memory of the host, everything is done at once, and what is captured is kept and done in order.
//
// A module is text: the path of a library that graphc's simulator has built, then a line for each
// kernel: its name, then the bytes of an element that each parameter points to. The environment's
// FAKE_CUDA_BROKEN names a kernel that fails when it is waited for. Types are those of cuda.h.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#define LOCKED std::lock_guard<std::recursive_mutex> guard(mutex)
#define EXPORT extern "C" __attribute__((visibility("default")))

typedef int Status;
enum : Status {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201,
    NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906, INVALID_IMAGE = 200,
};
typedef unsigned long long Pointer;
typedef std::vector<std::function<Status()>> Graph;

struct Block {
    size_t bytes;
    std::vector<uint8_t> written;
};

struct Function {
    const char *(*entry)(void **, const int64_t *, uint8_t **, unsigned, unsigned, unsigned,
                         unsigned, const int64_t *, const void *);
    std::string name;
    std::vector<int> sizes;
    int shared = 48 << 10;
};

// The map of a tensor as this driver makes it, and as the simulator takes it.
struct Map {
    Pointer address;
    uint64_t strides[4];
    uint32_t dims[5], box[5], element, rank;
};
struct TensorMap {
    const void *data;
    const uint8_t *defined;
    int64_t bytes, element, rank, dims[5], strides[4], box[5];
};

struct Stream {
    bool blocking;  // in order with the legacy default stream
};

struct Event {
    bool recorded = false, captured = false;
};

struct Module {
    void *library;
    std::map<std::string, Function> functions;
};

static bool ready = false;
static int primary;                           // whose address stands for the context
static thread_local std::vector<void *> contexts;  // the stack of this thread
static std::recursive_mutex mutex;            // held by whatever uses what follows
static std::map<Pointer, Block> memory;       // of the device
static Graph *recorded = nullptr;             // what is being captured
static Stream *capturing = nullptr;           // the stream that began
static std::set<Stream *> captured;           // and those that joined it
static Status pending = OK;                   // what the next wait tells

static Status require_context() { return contexts.empty() ? INVALID_CONTEXT : OK; }

// A capture fails if anybody uses the legacy default stream while a stream in order with it captures.
static bool is_implicit()
{
    for (Stream *stream : captured) {
        if (stream->blocking) {
            return true;
        }
    }
    return false;
}

static Status given(void *stream, std::function<Status()> work)
{
    LOCKED;
    if (Status status = require_context()) {
        return status;
    }
    if (stream == nullptr && is_implicit()) {
        return CAPTURE_IMPLICIT;
    }
    if (captured.count(static_cast<Stream *>(stream))) {
        recorded->push_back(work);
        return OK;
    }
    return work();
}

// The block that holds an address; end() if there is none.
static std::map<Pointer, Block>::iterator block_of(Pointer pointer)
{
    auto found = memory.upper_bound(pointer);
    if (found == memory.begin()) {
        return memory.end();
    }
    --found;
    return pointer < found->first + found->second.bytes ? found : memory.end();
}

static Status note(Pointer pointer, size_t bytes, bool writes)
{
    auto found = block_of(pointer);
    const size_t offset = found == memory.end() ? 0 : pointer - found->first;
    if (found == memory.end() || offset + bytes > found->second.bytes) {
        return INVALID_VALUE;
    }
    if (writes) {
        memset(found->second.written.data() + offset, 1, bytes);
    }
    return OK;
}

// ------------------------------------------------------------------ devices and contexts

EXPORT Status cuInit(unsigned) { ready = true; return OK; }
EXPORT Status cuDriverGetVersion(int *version) { *version = 13000; return OK; }
EXPORT Status cuDeviceGetCount(int *count) { *count = 1; return ready ? OK : NOT_INITIALIZED; }
EXPORT Status cuDeviceGet(int *device, int number) { *device = number; return OK; }
EXPORT Status cuDeviceGetAttribute(int *value, int which, int)
{
    *value = which == 75 ? 9 : 0;  // the compute capability is 9.0
    return OK;
}
EXPORT Status cuDeviceComputeCapability(int *major, int *minor, int)
{
    *major = 9;
    *minor = 0;
    return OK;
}
EXPORT Status cuDeviceGetName(char *name, int length, int)
{
    strncpy(name, "simulator", length);
    return OK;
}
EXPORT Status cuDevicePrimaryCtxRetain(void **context, int) { *context = &primary; return OK; }
EXPORT Status cuDevicePrimaryCtxRelease_v2(int) { return OK; }
EXPORT Status cuCtxGetCurrent(void **context)
{
    *context = contexts.empty() ? nullptr : contexts.back();
    return OK;
}
EXPORT Status cuCtxGetDevice(int *device) { *device = 0; return require_context(); }
EXPORT Status cuCtxPushCurrent_v2(void *context) { contexts.push_back(context); return OK; }
EXPORT Status cuCtxPopCurrent_v2(void **context)
{
    if (contexts.empty()) {
        return INVALID_CONTEXT;
    }
    if (context != nullptr) {
        *context = contexts.back();
    }
    contexts.pop_back();
    return OK;
}
EXPORT Status cuCtxDetach(void *) { return OK; }
EXPORT Status cuCtxSynchronize() { return require_context(); }

// ------------------------------------------------------------------ memory

EXPORT Status cuMemAlloc_v2(Pointer *pointer, size_t bytes)
{
    LOCKED;
    if (Status status = require_context()) {
        return status;
    }
    if (bytes == 0 || bytes > (1ull << 40)) {
        return bytes == 0 ? INVALID_VALUE : OUT_OF_MEMORY;
    }
    void *found = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(found, 0xff, bytes);
    *pointer = reinterpret_cast<Pointer>(found);
    memory[*pointer] = Block{bytes, std::vector<uint8_t>(bytes)};
    return OK;
}
EXPORT Status cuMemFree_v2(Pointer pointer)
{
    LOCKED;
    if (memory.erase(pointer) == 0) {
        return INVALID_VALUE;
    }
    free(reinterpret_cast<void *>(pointer));
    return require_context();
}
EXPORT Status cuMemHostAlloc(void **place, size_t bytes, unsigned)
{
    *place = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return require_context();
}
EXPORT Status cuMemAllocHost_v2(void **place, size_t bytes) { return cuMemHostAlloc(place, bytes, 0); }
EXPORT Status cuMemFreeHost(void *place) { free(place); return require_context(); }
EXPORT Status cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, void *stream)
{
    return given(stream, [=] {
        const Status status = note(to, bytes, true);
        if (status == OK) {
            memcpy(reinterpret_cast<void *>(to), from, bytes);
        }
        return status;
    });
}
EXPORT Status cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, void *stream)
{
    return given(stream, [=] {
        const Status status = note(from, bytes, false);
        if (status == OK) {
            memcpy(to, reinterpret_cast<const void *>(from), bytes);
        }
        return status;
    });
}
EXPORT Status cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void *stream)
{
    return given(stream, [=] {
        const Status status = note(to, bytes, true) | note(from, bytes, false);
        if (status == OK) {
            memcpy(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from), bytes);
        }
        return status;
    });
}
EXPORT Status cuMemcpyHtoD_v2(Pointer to, const void *from, size_t bytes)
{
    return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
}
EXPORT Status cuMemcpyDtoH_v2(void *to, Pointer from, size_t bytes)
{
    return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
}

// ------------------------------------------------------------------ code

EXPORT Status cuModuleLoadData(void **module, const void *image)
{
    LOCKED;
    std::istringstream lines(static_cast<const char *>(image));
    std::string path, line;
    std::getline(lines, path);
    Module *made = new Module{dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), {}};
    if (made->library == nullptr) {
        return INVALID_IMAGE;
    }
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        Function function;
        words >> function.name;
        for (int size; words >> size;) {
            function.sizes.push_back(size);
        }
        const std::string symbol = "launch_" + function.name;
        function.entry =
            reinterpret_cast<decltype(function.entry)>(dlsym(made->library, symbol.c_str()));
        made->functions[function.name] = function;
    }
    *module = made;
    return require_context();
}
EXPORT Status cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options,
                                 void **values)
{
    for (unsigned n = 0; n < count; ++n) {
        if (options[n] == 4 || options[n] == 6) {  // sizes of the logs, which are empty
            values[n] = nullptr;
        }
    }
    return cuModuleLoadData(module, image);
}
EXPORT Status cuModuleUnload(void *) { return OK; }
EXPORT Status cuModuleGetFunction(void **function, void *module, const char *name)
{
    Module *from = static_cast<Module *>(module);
    auto found = from->functions.find(name);
    if (found == from->functions.end()) {
        return NOT_FOUND;
    }
    *function = &found->second;
    return OK;
}
EXPORT Status cuFuncSetAttribute(void *function, int which, int value)
{
    if (which != 8) {
        return INVALID_VALUE;
    }
    static_cast<Function *>(function)->shared = value;
    return OK;
}
EXPORT Status cuFuncSetBlockShape(void *, int, int, int) { return OK; }
// Of tensors of bits (UINT8, UINT16, UINT32), with lines of 128 bytes that are swizzled.
EXPORT Status cuTensorMapEncodeTiled(void *to, int type, unsigned rank, void *address,
                                     const uint64_t *dims, const uint64_t *strides,
                                     const uint32_t *box, const uint32_t *steps, int interleave,
                                     int swizzle, int, int outside)
{
    Map map = {};
    map.address = reinterpret_cast<Pointer>(address), map.rank = rank, map.element = 1u << type;
    bool fits = type >= 0 && type <= 2 && rank >= 1 && rank <= 5 && interleave == 0 &&
                swizzle == 3 && outside == 0 && map.address % 16 == 0 &&
                reinterpret_cast<uintptr_t>(to) % 64 == 0 && box[0] * map.element == 128;
    for (unsigned n = 0; fits && n < rank; ++n) {
        map.dims[n] = uint32_t(dims[n]), map.box[n] = box[n];
        fits = dims[n] > 0 && box[n] > 0 && box[n] <= 256 && steps[n] == 1;
        if (n + 1 < rank) {
            map.strides[n] = strides[n];
            fits = fits && strides[n] % 16 == 0 && strides[n] > 0;
        }
    }
    if (fits) {
        memcpy(to, &map, sizeof map);
    }
    return fits ? OK : INVALID_VALUE;
}
EXPORT Status cuLaunchKernel(void *kernel, unsigned grid, unsigned grid_y, unsigned grid_z,
                             unsigned block, unsigned block_y, unsigned block_z, unsigned shared,
                             void *stream, void **parameters, void **extra)
{
    const Function &function = *static_cast<Function *>(kernel);
    if (grid_y * grid_z * block_y * block_z != 1 || int(shared) > function.shared) {
        return INVALID_VALUE;
    }
    // Parameters one by one, or (PyCUDA) all in one buffer: 1, buffer, 2, its size, 0.
    const char *packed = parameters == nullptr ? static_cast<const char *>(extra[1]) : nullptr;
    std::vector<Pointer> pointers;
    std::vector<Map> maps;
    size_t place = 0;
    for (size_t n = 0; n < function.sizes.size(); ++n) {
        if (function.sizes[n] >= 0) {
            pointers.push_back(0);
            memcpy(&pointers.back(), packed ? packed + place : parameters[n], 8);
            place += 8;
            continue;
        }
        place = (place + 63) / 64 * 64;
        maps.push_back(Map());
        memcpy(&maps.back(), packed ? packed + place : parameters[n], sizeof(Map));
        place += 128;
    }
    return given(stream, [=] {
        std::vector<void *> data;
        std::vector<int64_t> counts;
        std::vector<uint8_t *> written;
        std::vector<int64_t> numbers;
        for (size_t n = 0; n < pointers.size(); ++n) {
            if (function.sizes[n] == 0) {
                numbers.push_back(int64_t(pointers[n]));
                continue;
            }
            auto found = block_of(pointers[n]);
            if (found == memory.end()) {
                return Status(ILLEGAL_ADDRESS);
            }
            const size_t offset = pointers[n] - found->first;
            data.push_back(reinterpret_cast<void *>(pointers[n]));
            counts.push_back((found->second.bytes - offset) / function.sizes[n]);
            written.push_back(found->second.written.data() + offset);
        }
        std::vector<TensorMap> tensors(maps.size());
        for (size_t n = 0; n < maps.size(); ++n) {
            const Map &map = maps[n];
            auto found = block_of(map.address);
            if (found == memory.end()) {
                return Status(ILLEGAL_ADDRESS);
            }
            TensorMap &tensor = tensors[n];
            const size_t offset = map.address - found->first;
            tensor.data = reinterpret_cast<void *>(map.address);
            tensor.defined = found->second.written.data() + offset;
            tensor.bytes = int64_t(found->second.bytes - offset);
            tensor.element = map.element, tensor.rank = map.rank;
            std::copy(map.dims, map.dims + 5, tensor.dims);
            std::copy(map.strides, map.strides + 4, tensor.strides);
            std::copy(map.box, map.box + 5, tensor.box);
        }
        const char *broken = getenv("FAKE_CUDA_BROKEN");
        const bool failed =
            function.entry(data.data(), counts.data(), written.data(), grid, block, 0, shared,
                           numbers.data(), tensors.data()) != nullptr ||
            (broken != nullptr && function.name == broken);
        pending = failed ? ILLEGAL_ADDRESS : pending;
        return Status(OK);
    });
}

// ------------------------------------------------------------------ streams, events, graphs

EXPORT Status cuStreamCreate(void **stream, unsigned flags)
{
    *stream = new Stream{flags == 0};
    return flags > 1 ? Status(INVALID_VALUE) : require_context();
}
EXPORT Status cuStreamDestroy_v2(void *stream) { delete static_cast<Stream *>(stream); return OK; }
EXPORT Status cuStreamSynchronize(void *stream)
{
    LOCKED;
    const bool captures = captured.count(static_cast<Stream *>(stream));
    return captures ? Status(CAPTURE_UNSUPPORTED) : pending;
}
EXPORT Status cuStreamWaitEvent(void *stream, void *event, unsigned)
{
    LOCKED;
    const Event &mark = *static_cast<Event *>(event);
    if (mark.captured) {
        captured.insert(static_cast<Stream *>(stream));
    }
    return mark.recorded ? OK : INVALID_VALUE;
}
EXPORT Status cuEventCreate(void **event, unsigned) { *event = new Event; return OK; }
EXPORT Status cuEventDestroy_v2(void *event) { delete static_cast<Event *>(event); return OK; }
EXPORT Status cuEventRecord(void *event, void *stream)
{
    LOCKED;
    *static_cast<Event *>(event) = Event{true, captured.count(static_cast<Stream *>(stream)) != 0};
    return OK;
}
EXPORT Status cuEventSynchronize(void *) { return OK; }
EXPORT Status cuEventElapsedTime(float *time, void *, void *) { *time = 0.25f; return OK; }
EXPORT Status cuEventElapsedTime_v2(float *time, void *, void *) { *time = 0.25f; return OK; }
EXPORT Status cuStreamBeginCapture_v2(void *stream, int mode)
{
    LOCKED;
    if (recorded != nullptr || stream == nullptr || mode < 0 || mode > 2) {
        return INVALID_VALUE;
    }
    recorded = new Graph;
    capturing = static_cast<Stream *>(stream);
    captured = {capturing};
    return OK;
}
EXPORT Status cuStreamEndCapture(void *stream, void **graph)
{
    LOCKED;
    if (stream != capturing) {
        return INVALID_VALUE;
    }
    *graph = recorded;
    recorded = nullptr;
    captured.clear();
    return OK;
}
EXPORT Status cuGraphInstantiateWithFlags(void **ready, void *graph, unsigned long long)
{
    *ready = new Graph(*static_cast<Graph *>(graph));
    return OK;
}
EXPORT Status cuGraphDestroy(void *graph) { delete static_cast<Graph *>(graph); return OK; }
EXPORT Status cuGraphExecDestroy(void *graph) { delete static_cast<Graph *>(graph); return OK; }
EXPORT Status cuGraphLaunch(void *graph, void *)
{
    LOCKED;
    for (const auto &work : *static_cast<Graph *>(graph)) {
        if (Status status = work()) {
            return status;
        }
    }
    return OK;
}

// ------------------------------------------------------------------ names

EXPORT Status cuGetErrorString(Status status, const char **text)
{
    *text = status == ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
            : status == OUT_OF_MEMORY ? "out of memory"
            : status == NOT_FOUND     ? "named symbol not found"
                                      : "some other error";
    return OK;
}
EXPORT Status cuGetErrorName(Status, const char **text) { *text = "CUDA_ERROR"; return OK; }
EXPORT Status cuGetProcAddress_v2(const char *name, void **function, int, uint64_t, int *found)
{
    for (const char *suffix : {"_v2", "", "WithFlags"}) {
        *function = dlsym(RTLD_DEFAULT, (std::string(name) + suffix).c_str());
        if (*function == nullptr) {
            void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
            *function = dlsym(self, (std::string(name) + suffix).c_str());
        }
        if (*function != nullptr) {
            break;
        }
    }
    if (found != nullptr) {
        *found = *function ? 0 : 1;
    }
    return *function ? OK : Status(NOT_FOUND);
}
