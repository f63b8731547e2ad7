#!/usr/bin/env bash
# Everything that needs a GPU, what tells most first; results go to $OUT (default: gpu-results) as
# they come, so that a part that is cut off leaves what it found.
#
#     benchmarks/gpu.sh                        # all of it
#     benchmarks/gpu.sh facts kernels bench    # or some
#     benchmarks/gpu.sh bench gemm attention   # arguments after bench are parts of bench_cuda.py
#
# facts      the GPU, its driver, and the versions of what is used
# kernels    pytest -m gpu: every strategy, the bindings, other libraries' arrays, the launchers
# bench      bench_cuda.py but for models: all that is measured on single kernels
# models     bench_cuda.py models: bert_base and resnet50; torch.compile takes most of the time
# tuned      bench_cuda.py --tune gemm: matrix products with tiles chosen by measuring them
# suite      pytest -m gpu: whole models, and the official suite (all of it, unless
#            GRAPHC_CONFORMANCE names a part)
# sanitize   compute-sanitizer's memcheck and racecheck over the kernels of the tests
#
# PYTHON chooses the interpreter (default: python3), LIMIT the seconds that each part may take
# (default: 540). Models are looked for in $GRAPHC_MODELS, shared/models and ../shared/models. Tests
# run in as many processes as there are cores if pytest-xdist is installed. NVRTC compiles several
# times faster than nvcc; it is used where it is found, unless GRAPHC_CUDA_COMPILER says otherwise.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
out=${OUT:-gpu-results}
limit=${LIMIT:-540}
parts=(facts kernels bench models tuned suite sanitize)
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
for folder in shared/models ../shared/models; do
    if [ -z "${GRAPHC_MODELS:-}" ] && [ -d "$folder" ]; then
        GRAPHC_MODELS=$(cd "$folder" && pwd)
        export GRAPHC_MODELS
    fi
done
if [ -z "${GRAPHC_CUDA_COMPILER:-}" ] &&
    "$python" -c 'import sys; from graphc.backends.cuda.nvrtc import find_nvrtc
sys.exit(find_nvrtc() is None)'; then
    export GRAPHC_CUDA_COMPILER=nvrtc
fi

facts() {
    {
        nvidia-smi
        nvcc --version | tail -2
        "$python" --version
        "$python" - <<'END'
import importlib.metadata as metadata

from graphc.backends.cuda.gpu import open_gpu
from graphc.backends.cuda.machine_code import architectures, compiler

for name in ("numpy", "onnx", "cuda-bindings", "pycuda", "nvidia-cuda-nvrtc", "torch", "jax"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "is not installed")
gpu = open_gpu()
print(gpu.device, gpu.arch, "through", gpu.name)
print("compiled by", compiler(), "for", *architectures())
END
    } 2>&1 | tee "$out/facts.txt"
    return "${PIPESTATUS[0]}"
}

# The arguments are pytest's; the name of the result comes first.
tests() {
    local name=$1 parallel=()
    shift
    "$python" -c 'import xdist' 2>/dev/null && parallel=(-n "$(nproc)")
    timeout "$limit" "$python" -m pytest -q -m gpu -rfE --tb=short -p no:cacheprovider \
        "${parallel[@]}" "$@" 2>&1 | tee "$out/$name.txt" | tail -40
    return "${PIPESTATUS[0]}"
}

kernels() { tests kernels tests/backends/cuda; }

suite() {
    GRAPHC_CONFORMANCE=${GRAPHC_CONFORMANCE:-all} tests suite tests/test_zoo.py \
        tests/test_conformance.py
}

measure() {
    local name=$1
    shift
    timeout "$((limit + 60))" "$python" benchmarks/bench_cuda.py --seconds "$limit" "$@" \
        2>"$out/$name.err" | tee "$out/$name.jsonl"
    return "${PIPESTATUS[0]}"
}

bench() {
    [ "$#" -gt 0 ] || set -- latency bandwidth gemm attention rows
    measure bench "$@"
}

models() { measure models models; }

tuned() { measure tuned --tune gemm; }

sanitize() {
    local status=0
    for tool in memcheck racecheck; do
        GRAPHC_CUDA_CHECK=1 timeout "$((limit / 2))" compute-sanitizer --tool "$tool" \
            --error-exitcode 9 --target-processes all "$python" -m pytest -q -x -m gpu \
            -p no:cacheprovider tests/backends/cuda/test_gpu.py -k test_graphs \
            >"$out/$tool.txt" 2>&1 || status=1
        grep -E "ERROR SUMMARY|RACECHECK SUMMARY|passed|failed|not found" "$out/$tool.txt" | tail -3
    done
    return "$status"
}

# Runs a part, and says what came of it.
part() {
    local start=$SECONDS status=0
    echo "== $1"
    "$@" || status=$?
    echo "== $1: $([ "$status" = 0 ] && echo done || echo "FAILED ($status)"), $((SECONDS - start)) s"
    return "$status"
}

failed=0
[ "$#" -gt 0 ] || set -- "${parts[@]}"
while [ "$#" -gt 0 ]; do
    chosen=$1
    shift
    case " ${parts[*]} " in
    *" $chosen "*) ;;
    *)
        echo "gpu.sh: there is no part $chosen; there are ${parts[*]}" >&2
        exit 2
        ;;
    esac
    if [ "$chosen" = bench ]; then # takes what follows, up to the next part of this script
        given=()
        while [ "$#" -gt 0 ] && [[ " ${parts[*]} " != *" $1 "* ]]; do
            given+=("$1")
            shift
        done
        part bench "${given[@]}" || failed=1
    else
        part "$chosen" || failed=1
    fi
done
exit "$failed"
