"""ND5: the autograd graph."""

from nanodoc.rules.graph import (
    backward_twice,
    cross_sample_leak,
    cut_graph,
    gradient_shape,
    growing_graph,
    in_place_on_leaf,
    in_place_overwrite,
    ineffective_freeze,
    layer_built_in_forward,
    loss_without_grad,
    missing_stop_gradient,
    no_grad_region,
    parameter_not_in_optimizer,
    repeated_module,
    stale_optimizer,
    undetached_straight_through,
    unexpectedly_frozen,
    unregistered_module,
    unused_parameter,
)

RULES = tuple(
    module.check
    for module in (
        cut_graph,
        loss_without_grad,
        backward_twice,
        in_place_overwrite,
        unused_parameter,
        parameter_not_in_optimizer,
        stale_optimizer,
        unexpectedly_frozen,
        no_grad_region,
        growing_graph,
        in_place_on_leaf,
        gradient_shape,
        cross_sample_leak,
        unregistered_module,
        repeated_module,
        layer_built_in_forward,
        ineffective_freeze,
        undetached_straight_through,
        missing_stop_gradient,
    )
)
