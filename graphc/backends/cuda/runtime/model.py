"""A launch plan with its weights and machine code, ready to run on a GPU.

Weights are uploaded once, also for several models that share them, and there is one arena. A run on
arrays of the host goes through pinned memory; a run on arrays of the device reads them and writes
its results where they are. The first run of a model waits for every kernel, so that a fault names
it. The first run for given places launches kernels one after another; the second captures copies
and launches as a graph, independent branches on streams of their own, and every later one replays
it in one call. Where data decides what is done (steps.py), the host waits for that, and only
launches that follow one another are graphs.

Calls of one model from several threads follow one another.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from .arrays import DeviceArray
from .constants import Constants
from .driver import Driver, DriverError
from .memory import Memory
from .places import HostSide, Places, Pointers
from .plan import AtSizes, Launch, OpenPlan, Sizes, Spec
from .steps import Place, perform

MAX_SIZES = 64  # whose launches are kept per model
MAX_GRAPHS = 16  # kept per model; the least recently used goes first
WORD = 8  # bytes that are read back at once
ALIGNMENT = 16  # bytes, of arrays that kernels may read in vectors
SEGMENT = 4  # launches that are worth a graph where a whole run cannot be one
CHECK = "GRAPHC_CUDA_CHECK"  # if set, every launch is waited for, and nothing is captured


class Model:
    """A model on a GPU.

    `plan` is what plan.json holds, `weights` the bytes of weights.bin, `image` a cubin or PTX of
    kernels.cu. DriverError if the GPU refuses them.
    """

    def __init__(self, plan: Mapping[str, Any], weights: Any, image: bytes, driver: Driver):
        self.plan, self.driver = plan, driver
        self._steps = plan.get("steps") or [{"launch": range(len(plan["launches"]))}]
        self._is_captured = plan.get("captured", True)
        self._lock = threading.RLock()
        self._graphs: OrderedDict[Places, object] = OrderedDict()
        self._segments: OrderedDict[Places, dict[int, object]] = OrderedDict()
        self._host: HostSide | None = None
        self._proven = False  # whether a run has waited for every kernel
        with driver.current():
            self._memory = Memory(driver)
            weakref.finalize(self, self._memory.close)
            module = self._memory.module(image)
            self._open = OpenPlan(plan, driver, module)
            self._known: OrderedDict[Sizes, AtSizes] = OrderedDict()
            most = self._at(self._open.most)
            self.inputs, self.outputs = most.inputs, most.outputs  # at the largest sizes
            self._spare: list[deque[int]] = [deque() for _ in self.outputs]
            self._stream = self._memory.stream()
            self._branch_streams = [self._memory.stream(apart=True) for _ in range(plan["streams"])]
            awaited = (n for n, launch in enumerate(most.launches) if launch.awaited)
            self._events = {number: self._memory.event() for number in awaited}
            self._start = self._memory.event()
            self._timed = (self._memory.event(timed=True), self._memory.event(timed=True))
            self._arena = self._memory.allocate(plan["arena_bytes"])
            self._word = self._memory.pinned(WORD)
            self._constants = Constants(plan, weights, self._memory, self._stream)

    def _at(self, sizes: Sizes) -> AtSizes:
        """The plan at some sizes; those of the last runs are remembered."""
        if sizes not in self._known:
            self._known[sizes] = self._open.at(sizes)
            if len(self._known) > MAX_SIZES:
                self._known.popitem(last=False)
        self._known.move_to_end(sizes)
        return self._known[sizes]

    # ------------------------------------------------------------ running

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The outputs for inputs in order: numpy arrays, or arrays on this device.

        Outputs are numpy arrays if all inputs are, otherwise arrays on the device, whose contents
        are in order with the legacy default stream. ValueError for inputs of other types, and for
        contents that the model forbids, as indices out of range: with such checks, a run waits.
        DriverError names the kernel that failed.
        """
        if len(values) != len(self.inputs):
            raise ValueError(f"takes {len(self.inputs)} inputs, found {len(values)}")
        sizes = self._open.sizes_of([value.shape for value in values])
        with self._lock, self.driver.current():
            for spec, value in zip(self._at(sizes).inputs, values):
                spec.check(value)
            if any(isinstance(value, DeviceArray) for value in values):
                return self._judged(self._run_on_device(values, sizes))
            return self._judged(self._run_on_host(values, sizes))

    def _judged(self, outputs: list[Any]) -> list[Any]:
        """The outputs but the last, if it tells of checks; ValueError if one does not hold."""
        checks = self.plan["checks"]
        for check, key in zip(checks, np.asarray(outputs.pop()).tolist() if checks else ()):
            if key > check["most"]:
                value = (check["low"] + key + 2**63) % 2**64 - 2**63
                raise ValueError(check["message"].replace("{value}", str(value)))
        return outputs

    def to_device(self, array: np.ndarray) -> DeviceArray:
        """A copy of an array on the device."""
        with self._lock, self.driver.current():
            pointer = self._memory.allocate(array.nbytes)
            self.driver.upload(pointer, _bytes(array), self._stream)
            self.driver.synchronize(self._stream)
        return DeviceArray(pointer, array.shape, array.dtype, self.driver, self, self._memory.free)

    def times(
        self,
        values: Sequence[DeviceArray],
        rounds: int,
        batch: int = 1,
        before: Callable[[object], None] = lambda stream: None,
    ) -> list[float]:
        """Milliseconds that a run takes on the device, as the mean of `batch` runs in a row, so
        many times. `before` gives the stream work that comes before each time and is not counted:
        while the GPU is busy with it, this thread gets ahead."""
        start, end = self._timed
        sizes = self._open.sizes_of([v.shape for v in values])
        with self._lock, self.driver.current():
            places = Places(tuple(v.pointer for v in values), self._outputs_for_a_run(), sizes)
            arrays = []
            for _ in range(rounds + 2):  # the first launches one by one, the second captures
                before(self._stream)
                self.driver.record(start, self._stream)
                for _ in range(batch):
                    self._perform(places)
                self.driver.record(end, self._stream)
                self._wait()
                arrays.append(self.driver.elapsed(start, end) / batch)
            for spare, pointer in zip(self._spare, places.outputs):
                spare.append(pointer)
        return arrays[2:]

    def _run_on_host(self, values: Sequence[np.ndarray], sizes: Sizes) -> list[np.ndarray]:
        host = self._host_side(sizes)
        for view, value in zip(host.inputs.views, values):
            np.copyto(view, value)
        known = self._perform(host.places, host)
        self._wait()
        return [
            view.reshape(-1)[: math.prod(spec.shape)].reshape(spec.shape).copy()
            for view, spec in zip(host.outputs.views, self._outputs_at(known, sizes))
        ]

    def _outputs_at(self, known: Mapping[str, int], sizes: Sizes) -> list[Spec]:
        """The outputs of a run after which all sizes are known."""
        return self._open.outputs(known) if self._open.counts else self._at(sizes).outputs

    def _host_side(self, sizes: Sizes) -> HostSide:
        """The memory of runs on arrays of the host, laid out for some sizes."""
        if self._host is None:
            self._host = HostSide(self._memory, self.inputs, self.outputs)
        self._host.arrange(self._at(sizes), sizes)
        return self._host

    def _run_on_device(self, values: Sequence[Any], sizes: Sizes) -> list[DeviceArray]:
        pointers = tuple(self._input(n, value, sizes) for n, value in enumerate(values))
        places = Places(pointers, self._outputs_for_a_run(), sizes)
        known = self._perform(places)
        stream = self.driver.number(self._stream)
        outputs = self._outputs_at(known, sizes)
        return [
            DeviceArray(
                pointer, spec.shape, spec.dtype, self.driver, self, spare.append, stream=stream
            )
            for spec, pointer, spare in zip(outputs, places.outputs, self._spare)
        ]

    def _input(self, number: int, value: Any, sizes: Sizes) -> int:
        """Where an input lies on the device; copied there if kernels cannot read it in place."""
        stream = self._stream
        resident = isinstance(value, DeviceArray)
        if resident:
            if value.stream not in (None, self.driver.number(stream)):
                self.driver.settle(value.stream)
            if value.pointer % ALIGNMENT == 0:
                return value.pointer
        place = self._host_side(sizes).places.inputs[number]
        if resident:
            self.driver.copy(place, value.pointer, value.nbytes, stream)
        else:
            self.driver.upload(place, _bytes(value), stream)
            self.driver.synchronize(stream)
        return place

    def _outputs_for_a_run(self) -> Pointers:
        """Memory for outputs: what a dropped output has left, or new."""
        return tuple(
            spare.popleft() if spare else self._memory.allocate(spec.nbytes)
            for spec, spare in zip(self.outputs, self._spare)
        )

    # ------------------------------------------------------------ launches

    def _perform(self, places: Places, host: HostSide | None = None) -> Mapping[str, int]:
        """Gives the GPU all copies and launches of a run: one by one at first, then as a graph, if
        it can be one. The sizes that are known by then."""
        check = bool(os.environ.get(CHECK))
        if check or not self._is_captured or places not in self._graphs:
            known = self._one_by_one(places, host, check or not self._proven)
            self._proven = True
            if self._is_captured:
                self._graphs.setdefault(places, None)
        else:
            known = self._open.known(places.sizes)
            if self._graphs[places] is None:
                self._graphs[places] = self._whole(places, host)
            self.driver.replay(self._graphs[places], self._stream)
        if self._is_captured:
            self._graphs.move_to_end(places)
        if len(self._graphs) > MAX_GRAPHS:
            _, graph = self._graphs.popitem(last=False)
            if graph is not None:
                self.driver.synchronize(self._stream)
                self._memory.free_graph(graph)
        return known

    def _one_by_one(self, places: Places, host: HostSide | None, waits: bool) -> Mapping[str, int]:
        if host is not None:
            host.upload(self.driver, self._stream)
        known = self._open.known(places.sizes)
        perform(self._steps, known, _OnStream(self, places, self._stream, waits))
        if host is not None:
            host.download(self.driver, self._stream)
        return known

    def _whole(self, places: Places, host: HostSide | None) -> object:
        """Everything a run does, as a graph."""

        def work(stream: object) -> None:
            if host is not None:
                host.upload(self.driver, stream)
            if "steps" in self.plan:
                known = self._open.known(places.sizes)
                perform(self._steps, known, _OnStream(self, places, stream, False))
            else:
                self._branches(places)
            if host is not None:
                host.download(self.driver, stream)

        return self._captured(work)

    def _segment(self, places: Places, numbers: Sequence[int]) -> object | None:
        """Launches that follow one another in a run that is no graph, as one; None the first time
        that they are made for these places."""
        graphs = self._segments.setdefault(places, {})
        self._segments.move_to_end(places)
        if len(self._segments) > MAX_GRAPHS:
            _, dropped = self._segments.popitem(last=False)
            self.driver.synchronize(self._stream)
            for graph in dropped.values():
                if graph is not None:
                    self._memory.free_graph(graph)
        if numbers[0] not in graphs:
            graphs[numbers[0]] = None
        elif graphs[numbers[0]] is None:
            launches = self._at(places.sizes).launches

            def work(stream: object) -> None:
                for number in numbers:
                    with _named(launches[number]):
                        self._enqueue(launches[number], places, stream)

            graphs[numbers[0]] = self._captured(work)
        return graphs[numbers[0]]

    def _captured(self, work: Callable[[object], None]) -> object:
        """What is given to a stream, as a graph."""
        stream = self._branch_streams[0]
        self.driver.begin_capture(stream)
        try:
            work(stream)
        except DriverError:
            with suppress(DriverError):
                self.driver.end_capture(stream)  # leaves the stream as it was
            raise
        return self._memory.graph(self.driver.end_capture(stream))

    def _branches(self, places: Places) -> None:
        """All launches, each on its stream and after those it depends on."""
        main, reached, last = self._branch_streams[0], {0}, {}
        if len(self._branch_streams) > 1:
            self.driver.record(self._start, main)
        for number, launch in enumerate(self._at(places.sizes).launches):
            stream = self._branch_streams[launch.stream]
            if launch.stream not in reached:
                self.driver.wait(self._start, stream)
                reached.add(launch.stream)
            for other in launch.waits:
                self.driver.wait(self._events[other], stream)
            with _named(launch):
                self._enqueue(launch, places, stream)
            if number in self._events:
                self.driver.record(self._events[number], stream)
            last[launch.stream] = number
        for used, number in last.items():
            if used:
                self.driver.wait(self._events[number], main)

    def _enqueue(
        self, launch: Launch, places: Places, stream: object, further: Sequence[int] = ()
    ) -> None:
        if launch.grid[0] == 0:
            return
        pointers = [self._address(argument, places) for argument in launch.arguments]
        self.driver.launch(
            launch.function, launch.grid, launch.block, launch.shared, stream,
            [*pointers, *launch.sizes, *further],
            [self.driver.tensor_map(m, pointers[m["argument"]] + m["offset"]) for m in launch.maps],
        )  # fmt: skip

    def _address(self, argument: Place, places: Places) -> int:
        space, number, offset = argument
        if space == "arena":
            return self._arena + offset
        if space == "const":
            return self._constants.pointers[number] + offset
        return (places.inputs if space == "input" else places.outputs)[number] + offset

    def _wait(self) -> None:
        """Waits for the run; DriverError says how to find the kernel at fault."""
        try:
            self.driver.synchronize(self._stream)
        except DriverError as error:
            raise DriverError(
                f"a kernel of {self.plan['name']} failed: {error} (with {CHECK}=1 in the "
                "environment every launch is waited for, and the kernel is named)"
            ) from error


class _OnStream:
    """Gives a stream the steps of a run; `waits` for each launch."""

    def __init__(self, model: Model, places: Places, stream: object, waits: bool):
        self.model, self.places, self.stream, self.waits = model, places, stream, waits
        self.launches = model._at(places.sizes).launches
        self.is_replaying = not (waits or model._is_captured or model._open.counts)

    def launch(self, numbers: Sequence[int], known: Mapping[str, int], *further: int) -> None:
        if self.is_replaying and len(numbers) >= SEGMENT:
            graph = self.model._segment(self.places, numbers)
            if graph is not None:
                self.model.driver.replay(graph, self.stream)
                return
        for number in numbers:
            launch = self.launches[number]
            if self.model._open.counts:
                launch = self.model._open.launch(number, known)
            with _named(launch):
                self.model._enqueue(launch, self.places, self.stream, further)
                if self.waits:
                    self.model.driver.synchronize(self.stream)

    def copy(self, target: Place, source: Place, nbytes: int) -> None:
        if nbytes:
            to, start = (self.model._address(place, self.places) for place in (target, source))
            self.model.driver.copy(to, start, nbytes, self.stream)

    def read(self, place: Place, nbytes: int) -> int:
        word = self.model._word[:nbytes]
        self.model.driver.download(word, self.model._address(place, self.places), self.stream)
        self.model._wait()
        return int.from_bytes(word.tobytes(), "little", signed=True)


@contextmanager
def _named(launch: Launch) -> Iterator[None]:
    """Errors name the kernel."""
    try:
        yield
    except DriverError as error:
        raise DriverError(f"{launch.where}: {error}") from error


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
