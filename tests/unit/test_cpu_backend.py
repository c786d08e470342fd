"""The cpu backend's seam: memory, submitting and waiting, interruption, errors."""

import os
import signal
import threading

import numpy as np
import pytest
from conformance.helpers import activation, output, tensor

from kestrel import errors
from kestrel.backends.cpu import CpuBackend
from kestrel.dtypes import Dtype
from kestrel.program.program import Command, Program
from kestrel.program.values import Dim, Storage, Value
from kestrel.runtime import native_ops

N, L = Dim.TOKENS, Dim.LOGIT_ROWS


def program(commands: list[Command], rows: int) -> Program:
    """A program whose outputs are the taps."""
    outputs = [value for c in commands for value in c.outputs if value.storage is Storage.OUTPUT]
    return Program(
        commands=tuple(commands),
        maxima={N: rows, Dim.SEQUENCES: 1, L: 1},
        max_blocks=1,
        vocab_size=1,
        logits=output("logits", L, 1),
        greedy=output("greedy", L, dtype=Dtype.I32),
        taps={value.name: value for value in outputs},
    )


def products(count: int, rows: int = 4, size: int = 8, value: float = 1.0) -> Program:
    """``count`` products in a row: x = ones, W = value * identity, so y = value ** count."""
    weight = tensor(np.eye(size, dtype=np.float32) * np.float32(value))
    x, commands = activation(np.ones((rows, size), np.float32)), []
    attributes = {"in_features": size, "weights": 1, "out_features": (size,), "scale": 1.0}
    for i in range(count):
        storage = Storage.OUTPUT if i == count - 1 else Storage.SCRATCH
        y = Value(f"stage.{i}", storage, Dtype.F32, (N, size))
        inputs = (x, weight, None, None, None, None, None, None)
        commands.append(Command("linear", f"stage.{i}", inputs, (y,), attributes))
        x = y
    return program(commands, rows)


@pytest.fixture
def backend():
    with_two = CpuBackend(threads=2)
    yield with_two
    with_two.close()


def test_untouched_memory_is_not_committed():
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("no /proc here")
    before = resident()
    buffer = native_ops().CpuBuffer(1 << 36)  # 64 GiB
    buffer.write(1 << 35, memoryview(b"kestrel"))
    assert resident() - before < 1 << 24
    found = bytearray(9)
    buffer.read((1 << 35) - 1, memoryview(found))
    assert bytes(found) == b"\0kestrel\0"


def test_buffers_are_aligned_zeroed_and_bounded():
    buffer = native_ops().CpuBuffer(100)
    array = np.frombuffer(buffer, np.uint8)
    assert array.ctypes.data % 64 == 0 and not array.any() and len(buffer) == buffer.nbytes == 100
    for offset in (-1, 91, 2**62):
        with pytest.raises(ValueError, match="of a buffer of 100"):
            buffer.read(offset, memoryview(bytearray(10)))
        with pytest.raises(ValueError, match="of a buffer of 100"):
            buffer.write(offset, memoryview(bytes(10)))


def test_memory_that_the_system_lacks_is_a_capacity_error(backend):
    with pytest.raises(errors.CapacityError, match="refuses .* lower the model's limits"):
        backend.allocate(1 << 60)


def test_one_step_at_a_time(backend):
    executable = backend.compile(products(3, value=2.0))
    executable.wait()  # nothing was announced: nothing happens
    executable.submit(4, 1, 0)
    with pytest.raises(errors.SessionBusyError, match="a step is under way"):
        executable.submit(4, 1, 0)
    executable.wait()
    assert (executable.taps["stage.2"] == 8.0).all()
    executable.submit(4, 1, 0)
    executable.cancel()
    executable.submit(4, 1, 0)
    executable.wait()


@pytest.mark.parametrize(
    "sizes", [(5, 1, 0), (4, 2, 0), (4, 1, 2), (0, 1, 0), (4, 0, 0), (4, 1, -1)]
)
def test_counts_beyond_the_arrays_are_refused(backend, sizes):
    with pytest.raises(errors.CapacityError, match="a step of"):
        backend.compile(products(1)).submit(*sizes)


def test_rows_beyond_the_step_are_left_alone(backend):
    executable = backend.compile(products(1))
    executable.taps["stage.0"][...] = -7.0
    executable.submit(3, 1, 0)
    executable.wait()
    assert executable.taps["stage.0"][:, 0].tolist() == [1, 1, 1, -7]


def test_two_executables_of_one_backend_in_two_threads(backend):
    results = {}

    def work(value: float) -> None:
        executable = backend.compile(products(30, rows=64, size=64, value=value))
        for _ in range(50):
            executable.submit(64, 1, 0)
            executable.wait()
            results.setdefault(value, set()).add(executable.taps["stage.29"].tobytes())

    threads = [threading.Thread(target=work, args=(value,)) for value in (2.0, 0.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in (2.0, 0.5):
        expected = np.full((64, 64), value**30, np.float32)
        assert results[value] == {expected.tobytes()}


#: Some hundred GFLOP: longer than any signal takes to arrive.
LONG = {"count": 60, "rows": 1024, "size": 1024}


def test_a_signal_stops_a_step_and_the_next_one_is_right(backend):
    class Alarm(Exception):
        pass

    def ring(number, frame):
        raise Alarm

    executable = backend.compile(products(**LONG))
    before = signal.signal(signal.SIGALRM, ring)
    try:
        executable.submit(LONG["rows"], 1, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Alarm):
            executable.wait()
        assert not executable.taps["stage.59"].any()  # it did not run to its end
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    executable.submit(8, 1, 0)
    executable.wait()
    assert (executable.taps["stage.59"][:8] == 1.0).all()


def test_another_thread_can_cancel_a_step_and_others_go_on_meanwhile(backend):
    executable = backend.compile(products(**LONG))
    executable.submit(LONG["rows"], 1, 0)
    threading.Timer(0.1, executable.cancel).start()  # runs while the step computes: no GIL held
    with pytest.raises(errors.DeviceError, match="cancelled"):
        executable.wait()
    assert not executable.taps["stage.59"].any()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # what is tested here
def test_a_forked_child_computes_with_threads_of_its_own(backend):
    if "thread" in native_ops().build_info()["options"].split():
        pytest.skip("ThreadSanitizer does not follow threads that a forked child starts")
    executable = backend.compile(products(5, value=2.0))
    executable.submit(4, 1, 0)
    executable.wait()
    executable.submit(4, 1, 0)
    child = os.fork()
    if child == 0:
        executable.taps["stage.4"][...] = 0
        executable.cancel()
        executable.submit(4, 1, 0)
        executable.wait()
        os._exit(0 if (executable.taps["stage.4"] == 32.0).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    executable.wait()
    assert (executable.taps["stage.4"] == 32.0).all()


def test_eager_mode_names_the_first_stage_that_is_not_finite():
    backend = CpuBackend(threads=1, eager=True)
    executable = backend.compile(products(5, value=1e30))
    executable.submit(2, 1, 0)
    with pytest.raises(errors.NumericalError, match=r"stage\.1: 16 values .* row 0 .* column 0"):
        executable.wait()
    executable.submit(2, 1, 0)  # usable afterwards
    with pytest.raises(errors.NumericalError):
        executable.wait()


def test_eager_mode_computes_the_same(backend):
    eager = CpuBackend(threads=2, eager=True).compile(products(5, value=1.5))
    eager.submit(4, 1, 0)
    eager.wait()
    assert (eager.taps["stage.4"] == np.float32(1.5) ** 5).all()


def test_a_profile_has_a_begin_and_an_end_for_each_command_and_thread(backend):
    executable = backend.compile(products(5))
    executable.submit(4, 1, 0)
    times = executable.wait_profiled()
    assert times.shape == (5, 2, 2)
    assert (times[..., 0] > 0).all() and (times[..., 1] >= times[..., 0]).all()
    # Every product waits for the one before: no thread begins before all have ended.
    assert (times[1:, :, 0].min(axis=1) >= times[:-1, :, 1].max(axis=1)).all()


def test_unsupported_operations_name_stage_operation_and_dtype(backend):
    half = Value("q_proj", Storage.WEIGHT, Dtype.I32, (8, 8), tensor(np.ones((8, 8))).source)
    [right] = products(1).commands
    inputs = (right.inputs[0], half, *right.inputs[2:])
    wrong = Command("linear", "layers.0.q_proj", inputs, right.outputs, right.attributes)
    with pytest.raises(
        errors.UnsupportedOperationError,
        match=r"layers\.0\.q_proj: .* operation 'linear' with I32: expected F32, F16, BF16",
    ):
        backend.compile(program([wrong], 4))


def test_a_head_wider_than_the_kernels_scratch_is_refused(backend):
    q, y = activation(np.ones((1, 513))), output("y", N, 513)
    cache = Value("c", Storage.CACHE, Dtype.F32, (1, 2, 1, 16 * 513), backend.allocate(65664))
    attributes = {"heads": 1, "kv_heads": 1, "head_dim": 513, "cache_dtype": Dtype.F32, "scale": 1}
    with pytest.raises(errors.UnsupportedOperationError, match="at most 512, found 513"):
        backend.compile(program([Command("attention", "s", (q, cache), (y,), attributes)], 1))


def test_an_operand_smaller_than_its_shape_is_refused(backend):
    cache = Value("c", Storage.CACHE, Dtype.F32, (2, 2, 1, 16), backend.allocate(255))
    k = activation(np.ones((1, 1)))
    slots = Value("slots", Storage.INPUT, Dtype.I32, (N,), "slots")
    attributes = {"kv_heads": 1, "head_dim": 1, "cache_dtype": Dtype.F32}
    with pytest.raises(ValueError, match="256 bytes at 0 of an operand of 255 bytes"):
        backend.compile(program([Command("kv_write", "s", (k, k, slots), (cache,), attributes)], 1))


def test_isa_names_are_checked():
    with pytest.raises(errors.UnsupportedIsaError, match="unknown instruction set 'mmx': here are"):
        CpuBackend(isa="mmx")
    for isa, why in native_ops().missing_isas().items():
        with pytest.raises(errors.UnsupportedIsaError, match=f"{isa}.*{why}"):
            CpuBackend(isa=isa)


@pytest.mark.parametrize("threads", [-1, 0, 257, 2.0, True, "2"])
def test_thread_counts_are_checked(threads):
    with pytest.raises(errors.ConfigError, match=f"threads: expected .* 256, found {threads!r}"):
        CpuBackend(threads=threads)


def test_a_closed_backend_says_so():
    backend = CpuBackend(threads=2)
    executable = backend.compile(products(2))
    backend.close()
    backend.close()
    executable.submit(4, 1, 0)
    with pytest.raises(errors.BackendError, match="was closed"):
        executable.wait()


def test_the_table_of_kernels():
    table = native_ops().op_table("scalar")
    assert set(table["linear"].items()) == {(d, "scalar") for d in ("F32", "F16", "BF16")}
    assert table["attention"] == {"F32": "scalar", "F16": "scalar"}
    assert table["rms_norm"] == {"F32": "scalar"}
    assert set(native_ops().op_table()["linear"].values()) == {native_ops().isas()[-1]}
