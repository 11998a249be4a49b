"""ND7: runs that end early."""

from nanodoc.rules.crash import (
    checkpoint_device,
    cublas_failure,
    device_mismatch,
    device_side_assert,
    dtype_mismatch,
    hung_step,
    loader_worker_died,
    out_of_memory,
    probability_range,
    process_died,
    shape_mismatch,
    unloaded_checkpoint,
    user_exception,
)

RULES = tuple(
    module.check
    for module in (
        device_side_assert,
        cublas_failure,
        checkpoint_device,
        out_of_memory,
        shape_mismatch,
        device_mismatch,
        dtype_mismatch,
        probability_range,
        loader_worker_died,
        user_exception,
        unloaded_checkpoint,
        process_died,
        hung_step,
    )
)
