#!/usr/bin/env bash
# Everything that needs a GPU, in one go; results go to $OUT (default: gpu-results).
#
#     benchmarks/gpu.sh                        # all of it
#     benchmarks/gpu.sh tests sanitize bench   # or some
#     benchmarks/gpu.sh bench gemm attention   # arguments after bench are parts of bench_cuda.py
#
# tests      pytest -m gpu: kernels, models, and the official suite (all of it with
#            GRAPHC_CONFORMANCE=all), in as many processes as there are cores if pytest-xdist is there
# sanitize   compute-sanitizer's memcheck and racecheck over the kernels of the tests
# bench      bench_cuda.py; GRAPHC_MODELS names the folder of bert_base.onnx and the others
#
# PYTHON chooses the interpreter (default: python3). NVRTC compiles several times faster than nvcc;
# it is used where it is found, unless GRAPHC_CUDA_COMPILER says otherwise.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
out=${OUT:-gpu-results}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
if [ -z "${GRAPHC_CUDA_COMPILER:-}" ] &&
    "$python" -c 'import sys; from graphc.backends.cuda.nvrtc import find_nvrtc
sys.exit(find_nvrtc() is None)'; then
    export GRAPHC_CUDA_COMPILER=nvrtc
fi
failed=0

tests() {
    local parallel=()
    "$python" -c 'import xdist' 2>/dev/null && parallel=(-n "$(nproc)")
    "$python" -m pytest -q -m gpu -rfE "${parallel[@]}" \
        tests/backends/cuda tests/test_zoo.py tests/test_conformance.py 2>&1 |
        tee "$out/tests.txt" | tail -40
    return "${PIPESTATUS[0]}"
}

sanitize() {
    local status=0
    for tool in memcheck racecheck; do
        GRAPHC_CUDA_CHECK=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            --target-processes all "$python" -m pytest -q -x -m gpu \
            tests/backends/cuda/test_gpu.py -k test_graphs >"$out/$tool.txt" 2>&1 || status=1
        grep -E "ERROR SUMMARY|RACECHECK SUMMARY|passed|failed" "$out/$tool.txt" | tail -3
    done
    return "$status"
}

bench() {
    "$python" benchmarks/bench_cuda.py "$@" 2>"$out/bench.err" | tee "$out/bench.jsonl"
    return "${PIPESTATUS[0]}"
}

[ "$#" -gt 0 ] || set -- tests sanitize bench
while [ "$#" -gt 0 ]; do
    part=$1
    shift
    case "$part" in
    tests | sanitize) "$part" || failed=1 ;;
    bench)
        bench "$@" || failed=1
        break
        ;;
    *)
        echo "gpu.sh: there is no part $part; there are tests, sanitize and bench" >&2
        exit 2
        ;;
    esac
done
exit "$failed"
