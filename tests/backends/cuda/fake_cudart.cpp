// CUDA's runtime library, as far as graphc_model.h calls it, on the driver of fake_libcuda.cpp.
// KERNELS(X) in the file GLUE says X(symbol, module, "name") for each kernel that was linked.
#include <cuda_runtime_api.h>

#include "fake_libcuda.cpp"

#include GLUE

static void *loaded(const char *image)
{
    static std::map<std::string, void *> modules;
    void *&module = modules[image];
    if (module == nullptr) {
        cuModuleLoadData(&module, image);
    }
    return module;
}

static void *function_of(const void *symbol)
{
    void *function = nullptr;
#define FIND(LINKED, IMAGE, NAME)                                                                  \
    if (symbol == reinterpret_cast<const void *>(LINKED)) {                                        \
        cuModuleGetFunction(&function, loaded(IMAGE), NAME);                                       \
    }
    KERNELS(FIND)
    return function;
}

#define RUNTIME extern "C" cudaError_t
#define AS(status) static_cast<cudaError_t>(status)

RUNTIME cudaSetDevice(int device)
{
    if (getenv("FAKE_CUDA_NO_DEVICE") != nullptr) {
        return cudaErrorNoDevice;
    }
    if (contexts.empty()) {
        contexts.push_back(&primary);
    }
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
extern "C" const char *cudaGetErrorString(cudaError_t status)
{
    const char *text = "no CUDA-capable device is detected";
    if (status != cudaErrorNoDevice) {
        cuGetErrorString(status, &text);
    }
    return text;
}
RUNTIME cudaMalloc(void **place, size_t bytes)
{
    return AS(cuMemAlloc_v2(reinterpret_cast<Pointer *>(place), bytes));
}
RUNTIME cudaFree(void *place) { return AS(cuMemFree_v2(reinterpret_cast<Pointer>(place))); }
RUNTIME cudaMallocHost(void **place, size_t bytes) { return AS(cuMemAllocHost_v2(place, bytes)); }
RUNTIME cudaFreeHost(void *place) { return AS(cuMemFreeHost(place)); }
RUNTIME cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream)
{
    if (kind == cudaMemcpyDeviceToDevice) {
        return AS(cuMemcpyDtoDAsync_v2(reinterpret_cast<Pointer>(to),
                                       reinterpret_cast<Pointer>(from), bytes, stream));
    }
    return AS(kind == cudaMemcpyHostToDevice
                  ? cuMemcpyHtoDAsync_v2(reinterpret_cast<Pointer>(to), from, bytes, stream)
                  : cuMemcpyDtoHAsync_v2(to, reinterpret_cast<Pointer>(from), bytes, stream));
}
RUNTIME cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
RUNTIME cudaFuncSetAttribute(const void *symbol, cudaFuncAttribute which, int value)
{
    return AS(cuFuncSetAttribute(function_of(symbol), which, value));
}
RUNTIME cudaLaunchKernel(const void *symbol, dim3 grid, dim3 block, void **arguments, size_t shared,
                         cudaStream_t stream)
{
    void *function = function_of(symbol);
    return function == nullptr
               ? cudaErrorInvalidDeviceFunction
               : AS(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                   shared, stream, arguments, nullptr));
}
RUNTIME cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned,
                                         unsigned long long,
                                         cudaDriverEntryPointQueryResult *result)
{
    const bool is_known = strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *found = is_known ? reinterpret_cast<void *>(cuTensorMapEncodeTiled) : nullptr;
    *result = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
RUNTIME cudaStreamCreate(cudaStream_t *stream)
{
    return AS(cuStreamCreate(reinterpret_cast<void **>(stream), 0));
}
RUNTIME cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return AS(cuStreamCreate(reinterpret_cast<void **>(stream), flags));
}
RUNTIME cudaStreamDestroy(cudaStream_t stream) { return AS(cuStreamDestroy_v2(stream)); }
RUNTIME cudaStreamSynchronize(cudaStream_t stream) { return AS(cuStreamSynchronize(stream)); }
RUNTIME cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return AS(cuStreamWaitEvent(stream, event, flags));
}
RUNTIME cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return AS(cuEventCreate(reinterpret_cast<void **>(event), flags));
}
RUNTIME cudaEventDestroy(cudaEvent_t event) { return AS(cuEventDestroy_v2(event)); }
RUNTIME cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return AS(cuEventRecord(event, stream));
}
RUNTIME cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    return AS(cuStreamBeginCapture_v2(stream, mode));
}
RUNTIME cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return AS(cuStreamEndCapture(stream, reinterpret_cast<void **>(graph)));
}
RUNTIME cudaGraphInstantiateWithFlags(cudaGraphExec_t *ready, cudaGraph_t graph,
                                      unsigned long long flags)
{
    return AS(cuGraphInstantiateWithFlags(reinterpret_cast<void **>(ready), graph, flags));
}
RUNTIME cudaGraphDestroy(cudaGraph_t graph) { return AS(cuGraphDestroy(graph)); }
RUNTIME cudaGraphExecDestroy(cudaGraphExec_t graph) { return AS(cuGraphExecDestroy(graph)); }
RUNTIME cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    return AS(cuGraphLaunch(graph, stream));
}
