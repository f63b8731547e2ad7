// CUTLASS's products of matrices for sm_80, of shapes of cuda_static.py: machine code, no launch.
//
//   nvcc -std=c++17 -arch=sm_80 -cubin -I CUTLASS/include cutlass_gemms.cu -o gemms_sm_80.cubin
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
