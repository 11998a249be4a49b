"""ND1: what came in."""

from nanodoc.rules.data import (
    all_ones_mask,
    all_targets_ignored,
    broadcast_loss,
    changing_items,
    class_imbalance,
    constant_batch,
    empty_reduction,
    index_out_of_range,
    inverted_mask,
    label_out_of_range,
    leaked_target,
    missing_causal_mask,
    mixed_dimensions,
    non_finite_input,
    padding_dominated,
    ragged_batch,
    single_class_batches,
    slow_loader,
    unnormalised_input,
    unpaired_transform,
    unseen_noise,
    unshifted_labels,
)

RULES = tuple(
    module.check
    for module in (
        non_finite_input,
        index_out_of_range,
        label_out_of_range,
        ragged_batch,
        all_targets_ignored,
        empty_reduction,
        unnormalised_input,
        constant_batch,
        class_imbalance,
        padding_dominated,
        broadcast_loss,
        slow_loader,
        all_ones_mask,
        inverted_mask,
        single_class_batches,
        unshifted_labels,
        missing_causal_mask,
        changing_items,
        unpaired_transform,
        mixed_dimensions,
        leaked_target,
        unseen_noise,
    )
)
