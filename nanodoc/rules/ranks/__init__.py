"""ND8: distributed runs."""

from nanodoc.rules.ranks import (
    desynchronised_ranks,
    diverged_replicas,
    drifting_buffers,
    gradient_averaging,
    local_clip,
    network,
    rank_local_failure,
    same_batches,
    shared_file,
    unawaited_file,
    unequal_token_means,
    unshuffled_epochs,
    unused_in_ddp,
)

RULES = tuple(
    module.check
    for module in (
        rank_local_failure,
        diverged_replicas,
        unused_in_ddp,
        desynchronised_ranks,
        network,
        same_batches,
        shared_file,
        local_clip,
        gradient_averaging,
        unawaited_file,
        unequal_token_means,
        drifting_buffers,
        unshuffled_epochs,
    )
)
