/* linear for one weight format; the including file defines WEIGHT_FORMAT, WEIGHT_BYTES,
 * WEIGHT_LOAD, WEIGHT_LOAD_N for the panels of many rows, STREAM_LOAD, STREAM_STORE, STREAM_JOIN for
 * the streams of few. */
#include "linear.h"

static inline const void *weight_at(const kst_linear_job *job, int64_t out, int64_t k) {
    return (const char *)job->weight + (out * job->in + k) * WEIGHT_BYTES;
}

#include "linear_panel.h"
#include "linear_stream.h"

void KST_FN(WEIGHT_FORMAT)(const kst_linear_job *job) {
    const int64_t stride = (job->in + VF_LANES - 1) / VF_LANES * VF_LANES;
    if (job->rows <= FEW_ROWS(job->in) &&
        job->rows * stride * (int64_t)sizeof(float) <= KST_SCRATCH_BYTES)
        stream(job, stride);
    else
        panels(job);
}
