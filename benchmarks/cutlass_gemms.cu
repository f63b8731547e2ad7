// CUTLASS's products of matrices for the shapes of cuda_static.py: machine code only, no launch.
//
//   nvcc -std=c++17 -arch=sm_80 -cubin -I CUTLASS/include cutlass_gemms.cu -o gemms_sm_80.cubin
//   nvcc -std=c++17 -arch=sm_90a -cubin -I CUTLASS/include -DHOPPER --expt-relaxed-constexpr
//       cutlass_gemms.cu -o gemms_sm_90a.cubin
#if !defined(HOPPER)
#include <cutlass/gemm/kernel/default_gemm_universal.h>
#include <cutlass/gemm/device/default_gemm_configuration.h>

template <class T, class Out, class Sum, class Of, int K, int M, int N, int WM, int WN, int Stages,
          class Instruction, class Right, class Multiply = cutlass::arch::OpMultiplyAdd>
using Product = typename cutlass::gemm::kernel::DefaultGemmUniversal<
    T, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, 16 / sizeof(T),
    T, Right, cutlass::ComplexTransform::kNone, 16 / sizeof(T), Out, cutlass::layout::RowMajor, Sum,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<M, N, K>,
    cutlass::gemm::GemmShape<WM, WN, K>, Instruction,
    cutlass::epilogue::thread::LinearCombination<Out, 16 / sizeof(Out), Sum, Of>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, Stages, Multiply>::GemmKernel;

using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Half = Product<cutlass::half_t, cutlass::half_t, float, float, 32, 128, 256, 64, 64, 3,
                     cutlass::gemm::GemmShape<16, 8, 16>, Row>;
using Tf32 = Product<cutlass::tfloat32_t, float, float, float, 16, 128, 256, 64, 64, 3,
                     cutlass::gemm::GemmShape<16, 8, 8>, Row>;
using Bytes = Product<int8_t, int32_t, int32_t, float, 64, 128, 256, 64, 64, 3,
                      cutlass::gemm::GemmShape<16, 8, 32>, Column,
                      cutlass::arch::OpMultiplyAddSaturate>;

template __global__ void cutlass::Kernel2<Half>(Half::Params);
template __global__ void cutlass::Kernel2<Tf32>(Tf32::Params);
template __global__ void cutlass::Kernel2<Bytes>(Bytes::Params);
#else
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using namespace cute;
using Half = cutlass::half_t;
using Row = cutlass::layout::RowMajor;
using Block = Shape<_128, _256, _64>;
using Cluster = Shape<_2, _1, _1>;
using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Block, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row, 8, Half, Row, 8,
    cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
using Multiply = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Half, Row, 8, Half, Row, 8, float, Block,
    Cluster, cutlass::gemm::collective::StageCountAutoCarveout<sizeof(Epilogue::SharedStorage)>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
using Product =
    cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Multiply, Epilogue>;

template __global__ void cutlass::device_kernel<Product>(Product::Params const);
#endif
