"""The CPU backend's native half: memory, compiled programs, kernel choice, sampling over one row.

Rules of this file (and of every .pyx here):
1. A raw C pointer is named c_...; the object that stores one also stores what owns the memory.
2. The GIL is released in `wait` alone; there is no `with gil` inside. Code without the GIL touches
   C structs only.
3. Programs and weights are immutable and may be shared by threads. An executable serves one step
   at a time: a second submit raises. Executables of one device take turns inside `wait`.
4. Native threads never call Python. `wait` returns to the interpreter every SLICE seconds to let
   signals in; an exception there stops the run before it travels on.
5. Sizes, types and addresses are checked here, once, when a program is packed or a step submitted.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport getpid

from kestrel._native cimport *
from kestrel._pack cimport dtype_code, pack_args

from array import array
from threading import Lock

from kestrel import errors

cdef extern from *:
    const char *KST_BUILD_OPTIONS  # set by setup.py

if kst_abi_version() != KST_ABI_VERSION or kst_cmd_size() != sizeof(kst_cmd):
    raise ImportError("kestrel._ops and its kernels were built from different headers: build anew")

cdef double SLICE = 0.05  # seconds between two looks at pending signals

include "_machine.pxi"


cdef class CpuBuffer:
    """``nbytes`` zeroed bytes, aligned to a page; pages that are never touched cost nothing.

    A writable buffer in Python's sense. Raises CapacityError."""
    def __cinit__(self, Py_ssize_t nbytes):
        if nbytes < 0:
            raise ValueError(f"nbytes: expected 0 or more, found {nbytes}")
        self.c_data = kst_memory_map(nbytes)
        if self.c_data == NULL:
            raise errors.CapacityError(
                f"the system refuses {nbytes:,} bytes: lower the model's limits (kestrel.Limits)"
            )
        self.nbytes = nbytes

    def __dealloc__(self):
        kst_memory_unmap(self.c_data, self.nbytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.c_data, self.nbytes, 0, flags)

    def __len__(self):
        return self.nbytes

    def read(self, Py_ssize_t offset, into):
        """Copy ``into.nbytes`` bytes at ``offset`` into a writable memoryview."""
        into.cast("B")[:] = memoryview(self)[self._range(offset, into.nbytes)]

    def write(self, Py_ssize_t offset, data):
        """Copy the bytes of a memoryview in at ``offset``."""
        memoryview(self)[self._range(offset, data.nbytes)] = data.cast("B")

    def _range(self, Py_ssize_t offset, Py_ssize_t nbytes):
        if offset < 0 or nbytes > self.nbytes - offset:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of a buffer of {self.nbytes}")
        return slice(offset, offset + nbytes)


cdef class CpuDevice:
    """Worker threads, and the highest instruction set (a name, None for the best) they may use.

    Raises UnsupportedIsaError, CapacityError.
    """

    def __cinit__(self, int threads, isa=None):
        if not 1 <= threads <= KST_MAX_THREADS:
            raise errors.CapacityError(f"threads: expected 1 to {KST_MAX_THREADS}, found {threads}")
        self._ceiling = _ceiling(isa)
        self.isa = kst_isa_name(self._ceiling).decode()
        self.threads = threads
        self._turn, self._pid = Lock(), getpid()
        self.c_pool = kst_pool_create(threads)
        if self.c_pool == NULL:
            raise errors.CapacityError(f"no memory for {threads} worker threads")

    def __dealloc__(self):
        kst_pool_destroy(self.c_pool)

    def close(self):
        """End the worker threads, after the step in progress; later steps raise BackendError."""
        with self.turn():
            kst_pool_destroy(self.c_pool)
            self.c_pool = NULL

    cdef object turn(self):
        """The lock under which a run may use the pool. A forked child starts with a free one."""
        if self._pid != getpid():
            self._turn, self._pid = Lock(), getpid()
        return self._turn


# -- compiled programs -----------------------------------------------------------------------------

cdef class CpuExecutable:
    """A packed program over fixed addresses. One step at a time: ``submit``, then ``wait``.

    ``commands`` are `kestrel.backends.cpu.NativeCommand`s; ``inputs`` holds the int32 arrays of
    StepInputs. Both are kept alive, and their memory exported, as long as this object lives.
    Raises UnsupportedOperationError where no kernel takes an operation with its dtype.
    """

    def __cinit__(self, CpuDevice device, commands, inputs):
        self.device, self._keepalive, self.count = device, [], len(commands)
        self._pid = getpid()
        self.c_cmds = <kst_cmd *>calloc(max(self.count, 1), sizeof(kst_cmd))
        if self.c_cmds == NULL:
            raise errors.CapacityError(f"no memory for a program of {self.count} commands")
        for index, command in enumerate(commands):
            self._pack(&self.c_cmds[index], command)
        self._bind(inputs)

    def __dealloc__(self):
        free(self.c_cmds)

    cdef int _pack(self, kst_cmd *c_cmd, command) except -1:
        c_cmd.op = _OPS[command.operation]
        c_cmd.kernel = kst_kernel_for(
            self.device._ceiling, c_cmd.op, dtype_code(command.dtype), NULL
        )
        if c_cmd.kernel == NULL:
            raise errors.UnsupportedOperationError(
                f"{command.stage}: the cpu backend has no kernel for operation "
                f"{command.operation!r} with {command.dtype}"
            )
        c_cmd.rows = KST_ROWS_LOGITS if command.logit_rows else KST_ROWS_TOKENS
        c_cmd.barrier_before = command.barrier
        c_cmd.work_per_row = command.work_per_row
        if len(command.inputs) > KST_MAX_INPUTS or len(command.outputs) > KST_MAX_OUTPUTS:
            raise ValueError(f"{command.stage}: more operands than a command has room for")
        for i, span in enumerate(command.inputs):
            c_cmd.in_[i] = NULL if span is None else self._address(span, writable=False)
        for i, span in enumerate(command.outputs):
            c_cmd.out[i] = self._address(span, writable=True)
        return pack_args(&c_cmd.args, c_cmd.op, command.attributes)

    cdef void *_address(self, span, bint writable) except NULL:
        owner, offset, nbytes = span
        view = memoryview(owner)
        if not view.c_contiguous or (writable and view.readonly):
            raise ValueError("operands must be contiguous, and outputs writable")
        if offset < 0 or nbytes <= 0 or offset + nbytes > view.nbytes:
            raise ValueError(f"{nbytes} bytes at {offset} of an operand of {view.nbytes} bytes")
        self._keepalive.append(view)
        return <char *>PyMemoryView_GET_BUFFER(view).buf + <Py_ssize_t>offset

    cdef int _bind(self, inputs) except -1:
        cdef const int32_t[::1] token_ids = inputs.token_ids, positions = inputs.positions
        cdef const int32_t[::1] rope_lengths = inputs.rope_lengths, slots = inputs.slots
        cdef const int32_t[::1] seq_start = inputs.seq_start, context_len = inputs.context_len
        cdef const int32_t[::1] logit_rows = inputs.logit_rows
        cdef const int32_t[:, ::1] block_table = inputs.block_table
        n, s, rows = token_ids.shape[0], context_len.shape[0], logit_rows.shape[0]
        found = (positions.shape[0], rope_lengths.shape[0], slots.shape[0], seq_start.shape[0],
                 block_table.shape[0])
        if min(n, s, rows, block_table.shape[1]) < 1 or found != (n, n, n, s + 1, s):
            raise ValueError("step arrays: expected [N] four times, [S + 1], [S], [S, B] and [L]")
        self.max_tokens, self.max_seqs, self.max_logit_rows = n, s, rows
        self._keepalive += map(memoryview, vars(inputs).values())
        self.step.max_blocks = block_table.shape[1]
        self.step.token_ids, self.step.positions = &token_ids[0], &positions[0]
        self.step.rope_lengths, self.step.slots = &rope_lengths[0], &slots[0]
        self.step.seq_start, self.step.context_len = &seq_start[0], &context_len[0]
        self.step.logit_rows = &logit_rows[0]
        self.step.block_table = &block_table[0, 0]
        return 0

    @property
    def sizes(self):
        """(tokens, sequences, logit rows) of the last submitted step."""
        return self.step.n_tokens, self.step.n_seqs, self.step.n_logit_rows

    def submit(self, int32_t n_tokens, int32_t n_seqs, int32_t n_logit_rows):
        """Announce one step over the inputs; `wait` computes it.

        Raises SessionBusyError while another step is under way, CapacityError beyond the arrays.
        """
        if self.submitted:
            raise errors.SessionBusyError(
                "a step is under way on this executable: wait for it before the next submit"
            )
        if not (1 <= n_tokens <= self.max_tokens and 1 <= n_seqs <= self.max_seqs
                and 0 <= n_logit_rows <= self.max_logit_rows):
            raise errors.CapacityError(
                f"a step of {n_tokens} tokens (1 to {self.max_tokens}), {n_seqs} sequences (1 to "
                f"{self.max_seqs}), {n_logit_rows} logit rows (0 to {self.max_logit_rows})"
            )
        self.step.n_tokens, self.step.n_seqs = n_tokens, n_seqs
        self.step.n_logit_rows = n_logit_rows
        self.submitted = True

    def wait(self, after=None, profile=False):
        """Compute the submitted step; without one, return at once.

        ``after(index)`` is called behind each command, which then runs alone (eager mode).
        ``profile=True`` returns array('q') [count, threads, 2]: begin and end of each command on
        each thread, in nanoseconds. An exception from a signal handler stops the step within
        about 0.1 s, and the executable may then be used again.
        """
        cdef int64_t[::1] times = None
        if self.waiting:
            raise errors.SessionBusyError("another thread waits for this executable's step")
        if not self.submitted:
            return None
        self.waiting = True
        try:
            with self.device.turn():
                _check_open(self.device)
                if profile:
                    record = array("q", bytes(16 * self.count * self.device.threads))
                    times = record
                    self._run(0, self.count, &times[0])
                    return record
                if after is None:
                    self._run(0, self.count, NULL)
                    return None
                for index in range(self.count):
                    self._run(index, index + 1, NULL)
                    after(index)
        finally:
            self.waiting = self.submitted = self.cancelled = False

    cdef int _run(self, int32_t first, int32_t stop, int64_t *c_times) except -1:
        cdef kst_pool *c_pool = self.device.c_pool
        cdef kst_cmd *c_cmds = self.c_cmds + first
        cdef int32_t count = stop - first
        cdef kst_status status = KST_CANCELLED
        if self.cancelled:
            return _check(status)
        self.computing = True
        try:
            with nogil:
                if c_times == NULL:
                    status = kst_run_start(c_pool, c_cmds, count, &self.step)
                else:
                    status = kst_run_start_profiled(c_pool, c_cmds, count, &self.step, c_times)
            _check(status)
            while True:
                with nogil:
                    status = kst_run_continue(c_pool, SLICE)
                if status != KST_AGAIN:
                    return _check(status)
                if self.cancelled:  # it may have come before the run had begun
                    kst_run_cancel(c_pool)
                try:
                    PyErr_CheckSignals()
                except BaseException:
                    kst_run_cancel(c_pool)
                    with nogil:
                        while kst_run_continue(c_pool, SLICE) == KST_AGAIN:
                            pass
                    raise
        finally:
            self.computing = False

    def cancel(self):
        """Drop the step under way, from any thread: its `wait` raises DeviceError.

        In a forked child a step of the parent's is forgotten: no thread there waits for it.
        """
        if self._pid != getpid():
            self._pid, self.waiting, self.computing = getpid(), False, False
        self.cancelled = self.submitted = self.waiting
        if self.computing:
            kst_run_cancel(self.device.c_pool)


cdef int _check(kst_status status) except -1:
    """Map a status to the exception that stands for it."""
    if status == KST_OK:
        return 0
    if status == KST_CANCELLED:
        raise errors.DeviceError("the step was cancelled: its outputs are not complete")
    if status == KST_NO_THREADS:
        raise errors.DeviceError("the system refuses another thread: set KESTREL_THREADS lower")
    raise errors.SessionBusyError("the worker threads are at work on another step")
