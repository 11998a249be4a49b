"""ND4: mixed precision."""

from nanodoc.rules.amp import (
    autocast_not_applied,
    clip_before_unscale,
    collapsing_scale,
    half_parameters,
    half_without_scaler,
    low_headroom,
    no_inf_checks,
    persistent_overflow,
    scaler_call_order,
)

RULES = tuple(
    module.check
    for module in (
        no_inf_checks,
        collapsing_scale,
        clip_before_unscale,
        scaler_call_order,
        half_without_scaler,
        half_parameters,
        persistent_overflow,
        autocast_not_applied,
        low_headroom,
    )
)
