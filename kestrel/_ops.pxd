"""The extension types of kestrel._ops, for other Cython modules."""

from libc.stdint cimport int32_t, int64_t

from kestrel._native cimport kst_cmd, kst_pool, kst_step


cdef class CpuBuffer:
    cdef void *c_data
    cdef readonly Py_ssize_t nbytes


cdef class CpuDevice:
    cdef kst_pool *c_pool
    cdef object _turn
    cdef int _pid
    cdef int _ceiling
    cdef readonly int threads
    cdef readonly str isa
    cdef object turn(self)


cdef class CpuExecutable:
    cdef kst_cmd *c_cmds
    cdef kst_step step
    cdef readonly int32_t count
    cdef CpuDevice device
    cdef list _keepalive
    cdef readonly int32_t max_tokens, max_seqs, max_logit_rows
    cdef int _pid
    cdef bint submitted, waiting, computing, cancelled
    cdef int _pack(self, kst_cmd *c_cmd, command) except -1
    cdef void *_address(self, span, bint writable) except NULL
    cdef int _bind(self, inputs) except -1
    cdef int _run(self, int32_t first, int32_t stop, int64_t *c_times) except -1
