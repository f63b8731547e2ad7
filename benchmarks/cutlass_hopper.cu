// CUTLASS's products of matrices for sm_90a, of shapes of cuda_static.py: machine code, no launch.
//
//   nvcc -std=c++17 -arch=sm_90a --expt-relaxed-constexpr -cubin -I CUTLASS/include
//       benchmarks/cutlass_hopper.cu -o gemms_sm_90a.cubin
#include <cutlass/device_kernel.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using cute::_1, cute::_2, cute::_128, cute::_256, cute::Int, cute::Shape;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;

template <class T, class Out, class Sum, class Right, int K>
struct Hopper {
    using Tile = Shape<_128, _256, Int<K>>;
    using Cluster = Shape<_2, _1, _1>;
    static constexpr int Wide = 16 / sizeof(T), OutWide = 16 / sizeof(Out);
    using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
        cutlass::epilogue::collective::EpilogueTileAuto, Sum, Sum, void, Row, OutWide, Out, Row, OutWide,
        cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
    using Loop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, Row, Wide, T, Right, Wide, Sum, Tile, Cluster,
        cutlass::gemm::collective::StageCountAutoCarveout<sizeof(typename Epilogue::SharedStorage)>,
        cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
    using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Loop, Epilogue,
                                                        cutlass::gemm::PersistentScheduler>;
};

using Half = Hopper<cutlass::half_t, cutlass::half_t, float, Row, 64>::Kernel;
using Tf32 = Hopper<cutlass::tfloat32_t, float, float, Column, 32>::Kernel;
using Bytes = Hopper<int8_t, int32_t, int32_t, Column, 128>::Kernel;

template __global__ void cutlass::device_kernel<Half>(const __grid_constant__ Half::Params);
template __global__ void cutlass::device_kernel<Tf32>(const __grid_constant__ Tf32::Params);
template __global__ void cutlass::device_kernel<Bytes>(const __grid_constant__ Bytes::Params);
