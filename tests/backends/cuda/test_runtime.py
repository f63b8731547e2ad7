"""The runtime, on a driver whose GPU is the simulator."""

import gc
import json

import numpy as np
import pytest
from cuda_programs import BRANCHES, graph_of, inputs_of, needs_compiler
from damage import damaged
from fake_driver import FakeDriver

import graphc
from graphc.backends.cuda import gpu
from graphc.backends.cuda.bundle import bundle_files, launch_plan
from graphc.backends.cuda.emit import emit
from graphc.backends.cuda.runtime import DeviceArray, DriverError, Model, adopt
from graphc.backends.cuda.runtime.artifact import code_for, load
from graphc.backends.cuda.runtime.driver import DriverMissing
from graphc.backends.cuda.runtime.model import MAX_GRAPHS
from graphc.driver import program_for
from graphc.errors import InternalError, ModelError, UnsupportedError
from graphc.ir.interp import interpret

pytestmark = needs_compiler

GRAPH = graph_of(BRANCHES)
PRODUCTS = """graph @net(%x: f32[N,1024]) -> f32[N,1024] where N: 1..4 {
  const %w : f32[1024,512] = random(seed=1)
  const %v : f32[512,1024] = random(seed=2)
  %p = MatMul(%x, %w) : f32[N,512]
  %r = Relu(%p) : f32[N,512]
  %y = MatMul(%r, %v) : f32[N,1024]
  return %y
}
"""


def model_of(text: str = BRANCHES, driver: FakeDriver | None = None) -> Model:
    source = emit(program_for(graph_of(text), "cuda"))
    plan, weights = launch_plan(source)
    plan = json.loads(json.dumps(plan))  # as a launcher reads it
    return Model(plan, weights, source.text.encode(), driver or FakeDriver())


def some_inputs(seed: int = 0) -> list[np.ndarray]:
    return [np.random.default_rng(seed).standard_normal((20, 37)).astype(np.float32)]


def check(found: object, inputs: list[np.ndarray]) -> None:
    np.testing.assert_allclose(np.asarray(found), interpret(GRAPH, inputs)[0], 1e-4, 1e-5)


# ---------------------------------------------------------------- arrays of the host


def test_weights_are_uploaded_once_and_launches_replayed():
    model = model_of()
    counts = model.driver.counts
    assert counts["upload"] == 1
    launches = len(model.plan["launches"])
    for round in range(5):
        inputs = some_inputs(round)
        check(model.run(inputs)[0], inputs)
        assert counts["launch"] == launches * min(round + 1, 2)  # one by one, then captured
        assert counts["replay"] == round
    assert counts["capture"] == 1
    assert counts["upload"] == 3  # weights; the first run; the capture
    assert counts["allocate"] == 4  # arena, weights, inputs, outputs


def test_models_for_several_shapes_share_large_weights(driver):
    graph = graphc.parse(PRODUCTS)
    model = graphc.compile(graph, "cuda", specialise="exact")
    large = [1024 * 512 * 4] * 2  # w and v
    for n in (2, 3, 2):
        x = np.random.default_rng(n).standard_normal((n, 1024)).astype(np.float32)
        np.testing.assert_allclose(model.run([x])[0], interpret(graph, [x])[0], 1e-4, 1e-3)
        sizes = [contents.nbytes for contents, _ in driver.memory.values()]
        assert [size for size in sizes if size >= large[0]] == large
    assert len(model.executables()) == 2
    del model
    gc.collect()
    assert not driver.memory


def test_branches_run_on_streams_of_their_own():
    model = model_of()
    assert model.plan["streams"] > 1
    for seed in range(5):
        model = model_of(driver=FakeDriver(seed))
        for round in range(3):
            inputs = some_inputs(round)
            check(model.run(inputs)[0], inputs)


def test_a_missing_dependency_would_show():
    source = emit(program_for(graph_of(BRANCHES), "cuda"))
    plan, weights = launch_plan(source)
    for launch in plan["launches"]:
        launch["waits"] = []
    with pytest.raises(AssertionError):
        for seed in range(10):
            model = Model(plan, weights, source.text.encode(), FakeDriver(seed))
            for round in range(3):
                inputs = some_inputs(round)
                check(model.run(inputs)[0], inputs)


def test_a_fault_names_its_kernel_and_nodes():
    model = model_of(BRANCHES.replace("Sub(%m, %n)", 'Sub(%m, %n)  loc("last node")'))
    name = model.plan["launches"][-1]["function"]
    model.driver.broken = name
    with pytest.raises(DriverError, match=f"kernel {name} .*last node.*illegal memory access"):
        model.run(some_inputs())


def test_a_fault_in_a_replay_says_how_to_find_the_kernel(monkeypatch):
    model = model_of()
    for _ in range(2):
        model.run(some_inputs())

    def synchronize(stream):
        raise DriverError("cuStreamSynchronize: launch timed out")

    monkeypatch.setattr(model.driver, "synchronize", synchronize)
    with pytest.raises(DriverError, match="a kernel of branches .*timed out.*GRAPHC_CUDA_CHECK=1"):
        model.run(some_inputs())


def test_every_launch_is_waited_for_if_asked(monkeypatch):
    monkeypatch.setenv("GRAPHC_CUDA_CHECK", "1")
    model = model_of()
    for _ in range(3):
        model.run(some_inputs())
    assert model.driver.counts["capture"] == 0


def test_inputs_are_checked():
    model = model_of()
    with pytest.raises(ValueError, match="takes 1 inputs, found 0"):
        model.run([])
    with pytest.raises(ValueError, match=r"takes float32\[20,37\]|takes float32\[20, 37\]"):
        model.run([np.zeros((20, 37))])


def test_only_the_first_run_waits_for_every_kernel():
    model = model_of()
    counts = model.driver.counts
    arrays = [model.to_device(some_inputs(seed)[0]) for seed in range(3)]
    waits = []
    for array in arrays:
        before = counts["synchronize"]
        model.run([array])
        waits.append(counts["synchronize"] - before)
    assert waits == [len(model.plan["launches"]), 0, 0]


def test_everything_is_given_back():
    driver = FakeDriver()
    model = model_of(driver=driver)
    inputs = some_inputs()
    for _ in range(2):
        model.run(inputs)
    resident = model.to_device(inputs[0])
    model.run([resident])
    del model, resident
    gc.collect()
    assert not driver.memory
    assert driver.counts["free_pinned"] == driver.counts["pinned"]
    assert driver.counts["free_graph"] == driver.counts["capture"] == 1
    assert driver.counts["unload"] == 1
    for kind in ("stream", "event"):
        assert driver.counts[f"free_{kind}"] == driver.counts[kind] > 1


def test_times():
    model = model_of()
    resident = model.to_device(some_inputs()[0])
    before = []
    assert model.times([resident], 3, batch=5, before=before.append) == [0.5 / 5] * 3
    assert before == [model.driver.streams[0]] * 5  # two runs more, which are not counted
    assert model.driver.counts["replay"] == 5 * 5 - 1


# ---------------------------------------------------------------- arrays of the device


class Foreign:
    """An array of another library."""

    def __init__(self, array: DeviceArray, **changes: object):
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


def test_arrays_of_the_device_are_not_copied():
    model = model_of()
    inputs = some_inputs()
    resident = model.to_device(inputs[0])
    counts = model.driver.counts
    before = counts["upload"]
    for _ in range(4):
        found = model.run([resident])[0]
        assert isinstance(found, DeviceArray) and found.shape == (20, 9)
        check(found, inputs)
        del found  # its memory serves the next run
    assert counts["upload"] == before and counts["copy"] == counts["download"] == 0
    assert counts["capture"] == 1 and counts["replay"] == 3


def test_results_that_are_kept_are_not_overwritten():
    model = model_of()
    kept = []
    for seed in range(4):
        inputs = some_inputs(seed)
        kept.append((inputs, model.run([model.to_device(inputs[0])])[0]))
    for inputs, found in kept:
        check(found, inputs)


def test_graphs_for_many_places_are_dropped():
    model = model_of()
    arrays = [model.to_device(some_inputs(seed)[0]) for seed in range(MAX_GRAPHS + 2)]
    for array in arrays:
        for _ in range(2):
            model.run([array])
    counts = model.driver.counts
    assert counts["capture"] == MAX_GRAPHS + 2 and counts["free_graph"] == 2


def test_arrays_of_other_libraries():
    model = model_of()
    inputs = some_inputs()
    resident = model.to_device(inputs[0])
    found = adopt(Foreign(resident))
    assert found.pointer == resident.pointer and found.dtype == np.float32
    check(model.run([found])[0], inputs)
    settled = model.driver.counts["settle"]
    model.run([adopt(Foreign(resident, stream=77))])
    assert model.driver.counts["settle"] == settled + 1
    assert adopt(inputs[0]) is None and adopt([1]) is None
    with pytest.raises(ValueError, match="contiguous"):
        adopt(Foreign(resident, strides=(4, 80)))


def test_arrays_that_vectors_cannot_read_are_copied():
    model = model_of()
    inputs = some_inputs()
    longer = model.to_device(np.append(np.float32(0), inputs[0]))
    odd = DeviceArray(longer.pointer + 4, (20, 37), np.float32, None, longer)
    check(model.run([odd])[0], inputs)
    assert model.driver.counts["copy"] == 1


def test_dlpack_gives_the_same_memory():
    model = model_of()
    resident = model.to_device(some_inputs()[0])

    class Producer:
        def __dlpack_device__(self):
            return resident.__dlpack_device__()

        def __dlpack__(self, stream):
            assert stream == 1
            return resident.__dlpack__(stream=stream)

    found = adopt(Producer())
    assert (found.pointer, found.shape, found.dtype) == (resident.pointer, (20, 37), np.float32)
    from graphc.backends.cuda.runtime import arrays

    assert len(arrays._exported) == 1
    del found
    gc.collect()
    assert not arrays._exported


def test_dlpack_of_a_type_that_numpy_lacks():
    import ml_dtypes

    model = model_of()
    array = model.to_device(np.ones(3, ml_dtypes.bfloat16))
    assert not hasattr(array, "__cuda_array_interface__")

    class Producer:
        __dlpack_device__ = array.__dlpack_device__
        __dlpack__ = array.__dlpack__

    assert adopt(Producer()).dtype == ml_dtypes.bfloat16


def test_times_of_replays():
    model = model_of()
    resident = model.to_device(some_inputs()[0])
    assert model.times([resident], 3) == [0.5] * 3
    assert model.driver.counts["replay"] == 4


# ---------------------------------------------------------------- graphc.compile


@pytest.fixture
def driver(monkeypatch):
    """graphc.compile finds this GPU."""
    found = FakeDriver()
    monkeypatch.setattr(gpu, "open_driver", lambda ordinal: found)
    monkeypatch.setattr(gpu, "image_for", lambda text, arch: text.encode())
    return found


def test_compile_and_run(driver):
    model = graphc.compile(GRAPH, target="cuda")
    inputs = some_inputs()
    for _ in range(3):
        check(model.run(inputs)[0], inputs)
    assert driver.counts["capture"] == 1


def test_several_models_in_one_process(driver):
    models = [graphc.compile(GRAPH, target="cuda") for _ in range(3)]
    inputs = some_inputs()
    for _ in range(2):
        for model in models:
            check(model.run(inputs)[0], inputs)
    assert driver.counts["load"] == 3


def test_arrays_of_the_device_go_through(driver):
    model = graphc.compile(GRAPH, target="cuda")
    other = model_of(driver=driver)
    inputs = some_inputs()
    resident = Foreign(other.to_device(inputs[0]))
    found, *_ = model.run({"x": resident})
    assert isinstance(found, DeviceArray)
    check(found, inputs)
    small = Foreign(other.to_device(np.zeros((2, 37), np.float32)))
    with pytest.raises(ModelError, match="takes shape"):
        model.run({"x": small})
    with pytest.raises(ModelError, match="contiguous"):
        model.run({"x": Foreign(other.to_device(inputs[0]), strides=(4, 80))})


def test_parts_on_the_host_read_arrays_of_the_device(driver):
    model = graphc.compile(
        graphc.parse("""graph @g(%x: f32[6]) -> ? {
  %a = Relu(%x)
  %i = NonZero(%a)
  return %i
}"""),
        target="cuda",
    )
    x = np.array([1, -2, 0, 3, 5, -1], np.float32)
    other = model_of(driver=driver)
    for value in (x, other.to_device(x)):
        assert np.array_equal(np.asarray(model.run([value])[0]), [[0, 3, 4]])


def test_too_little_memory(driver):
    driver.limit = 1000
    with pytest.raises(UnsupportedError, match="the GPU has too little memory: .* bytes"):
        graphc.compile(GRAPH, target="cuda")


def test_a_failing_kernel_is_an_error_of_graphc(driver):
    model = graphc.compile(GRAPH, target="cuda")
    driver.broken = model.executables()[0].run.model.plan["launches"][0]["function"]
    with pytest.raises(InternalError, match=f"kernel {driver.broken}"):
        model.run(some_inputs())


# ---------------------------------------------------------------- folders


def written(folder, source):
    """The files of a model, with text in place of machine code; what they hold, by name."""
    files = bundle_files(source)
    for name, contents in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(contents)
    (folder / "kernels.sm_90.cubin").write_text(source.text)
    return files


def test_a_folder_is_loaded(tmp_path):
    source = emit(program_for(graph_of(BRANCHES), "cuda"))
    weights = written(tmp_path, source)["weights.bin"]
    model = load(tmp_path, driver=FakeDriver())
    inputs = inputs_of(source.program)
    check(model.run(inputs)[0], inputs)
    (tmp_path / "weights.bin").write_bytes(weights[:-1])
    with pytest.raises(ValueError, match=f"weights.bin holds {len(weights) - 1} bytes, expected"):
        load(tmp_path, driver=FakeDriver())
    for text, message in (("{", "plan.json is damaged"), ("{}", "plan.json is no launch plan")):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            load(tmp_path, driver=FakeDriver())


def test_damaged_folders(tmp_path, request):
    """Whatever is damaged of what is read to run a model, it is refused or gives what it gave."""
    source = emit(program_for(graph_of(BRANCHES), "cuda"))
    files = written(tmp_path, source)
    inputs = inputs_of(source.program)
    wanted = load(tmp_path, driver=FakeDriver()).run(inputs)
    read = ["plan.json", "weights.bin", "run_branches.py", "graphc_cuda/model.py"]
    assert set(read) <= set(files)
    count = request.config.getoption("damages") // len(read)
    for name in read:
        for what, data in damaged(files[name], count):
            (tmp_path / name).write_bytes(data)
            try:
                outputs = load(tmp_path, driver=FakeDriver()).run(inputs)
            except ValueError as error:
                assert name in str(error), what
                continue
            assert name == "plan.json", what  # white space there means nothing
            for found, expected in zip(outputs, wanted):
                np.testing.assert_array_equal(found, expected, err_msg=what)
        (tmp_path / name).write_bytes(files[name])


def test_code_is_chosen_by_architecture(tmp_path):
    for name in ("sm_80.cubin", "sm_90.cubin", "sm_80.ptx", "sm_100.ptx"):
        (tmp_path / f"kernels.{name}").write_text(name)
    assert code_for(tmp_path, "sm_80").name == "kernels.sm_80.cubin"
    assert code_for(tmp_path, "sm_86").name == "kernels.sm_80.cubin"
    assert code_for(tmp_path, "sm_90").name == "kernels.sm_90.cubin"
    assert code_for(tmp_path, "sm_120").name == "kernels.sm_100.ptx"
    for name in ("sm_90a.cubin", "sm_110a.ptx"):
        (tmp_path / f"kernels.{name}").write_text(name)
    assert code_for(tmp_path, "sm_90").name == "kernels.sm_90a.cubin"
    assert code_for(tmp_path, "sm_91").name == "kernels.sm_90.cubin"
    assert code_for(tmp_path, "sm_110").name == "kernels.sm_110a.ptx"
    assert code_for(tmp_path, "sm_120").name == "kernels.sm_100.ptx"
    with pytest.raises(DriverMissing, match="nvcc -cubin -arch=sm_75"):
        code_for(tmp_path, "sm_75")
