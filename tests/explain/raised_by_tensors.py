"""Errors of tensor operations, raised for real: `raises_<id>` ends with the error that the entry
`<id>` explains."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

# shapes


def raises_matmul_shapes() -> None:
    nn.Linear(20, 3)(torch.randn(4, 10))


def raises_vector_product_shapes() -> None:
    torch.randn(3, 4) @ torch.randn(3)


def raises_batched_product_shapes() -> None:
    torch.bmm(torch.randn(2, 3, 4), torch.randn(2, 5, 6))


def raises_broadcast_shapes() -> None:
    torch.randn(4, 3) + torch.randn(4, 5)


def raises_reshape_count() -> None:
    torch.randn(2, 3).view(4, 2)


def raises_view_not_contiguous() -> None:
    torch.randn(2, 3).t().view(6)


def raises_conv_channels() -> None:
    nn.Conv2d(3, 8, 3)(torch.randn(2, 1, 8, 8))


def raises_conv_dimensions() -> None:
    nn.Conv2d(3, 8, 3)(torch.randn(2, 64))


def raises_kernel_too_large() -> None:
    nn.Conv2d(3, 8, 5)(torch.randn(2, 3, 2, 2))


def raises_pooled_to_nothing() -> None:
    nn.MaxPool2d(2)(torch.randn(2, 3, 1, 1))


def raises_padding_too_large() -> None:
    F.pad(torch.randn(1, 3, 2, 2), (3, 3, 3, 3), mode="reflect")


def raises_stack_sizes() -> None:
    torch.stack([torch.randn(3), torch.randn(4)])


def raises_cat_sizes() -> None:
    torch.cat([torch.randn(2, 3), torch.randn(2, 4)], 0)


def raises_cat_dimensions() -> None:
    torch.cat([torch.randn(2, 3), torch.randn(2)], 0)


def raises_expand_size() -> None:
    torch.randn(2, 3).expand(4, 3)


def raises_permute_dimensions() -> None:
    torch.randn(2, 3).permute(0, 2, 1)


def raises_dimension_out_of_range() -> None:
    torch.randn(3).softmax(dim=1)


def raises_too_many_indices() -> None:
    torch.randn(3)[0, 0]


def raises_mask_shape() -> None:
    torch.randn(3, 4)[torch.ones(4, dtype=torch.bool)]


def raises_index_assignment_shape() -> None:
    torch.zeros(4, 5)[torch.tensor([0, 1])] = torch.randn(3, 5)


def raises_batch_norm_single_value() -> None:
    nn.BatchNorm1d(4)(torch.randn(1, 4))


def raises_batch_norm_channels() -> None:
    nn.BatchNorm1d(4)(torch.randn(2, 5))


def raises_group_norm_channels() -> None:
    nn.GroupNorm(3, 6)(torch.randn(2, 4, 3))


def raises_layer_norm_shape() -> None:
    nn.LayerNorm(8)(torch.randn(2, 6))


def raises_rnn_input_size() -> None:
    nn.LSTM(10, 20)(torch.randn(5, 2, 8))


def raises_rnn_hidden_size() -> None:
    nn.GRU(10, 20)(torch.randn(5, 2, 10), torch.randn(1, 4, 20))


def raises_packed_lengths() -> None:
    pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([5, 0]), enforce_sorted=False)


def raises_attention_heads() -> None:
    nn.MultiheadAttention(10, 3)


def raises_attention_mask_shape() -> None:
    x = torch.randn(5, 2, 8)
    nn.MultiheadAttention(8, 2)(x, x, x, attn_mask=torch.zeros(4, 4))


def raises_einsum_shapes() -> None:
    torch.einsum("ij,jk->ik", torch.randn(2, 3), torch.randn(4, 5))


def raises_target_batch_size() -> None:
    F.cross_entropy(torch.randn(8, 3), torch.zeros(4, dtype=torch.long))


def raises_target_shape() -> None:
    F.cross_entropy(torch.randn(2, 3, 8, 8), torch.zeros(2, 4, 4, dtype=torch.long))


def raises_target_not_indices() -> None:
    F.nll_loss(torch.randn(8, 3), torch.zeros(8, 1, dtype=torch.long))


def raises_spatial_target() -> None:
    F.nll_loss(torch.randn(2, 3, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.long))


def raises_target_size_differs() -> None:
    nn.BCEWithLogitsLoss()(torch.randn(4, 1), torch.rand(4))


def raises_broadcast_in_loss() -> None:
    nn.MSELoss()(torch.randn(4, 1), torch.randn(4))


# dtypes and devices


def raises_dtype_of_products() -> None:
    nn.Linear(3, 2)(torch.randn(2, 3).double())


def raises_dtype_long_expected() -> None:
    F.cross_entropy(torch.randn(4, 3), torch.zeros(4))


def raises_embedding_index_dtype() -> None:
    nn.Embedding(5, 2)(torch.rand(3))


def raises_index_dtype() -> None:
    torch.randn(3)[torch.tensor([0.0, 1.0])]


def raises_not_implemented_for_dtype() -> None:
    torch.randperm(4, dtype=torch.bool)


def raises_input_and_weight_dtype__layer() -> None:
    nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 8, 8).double())


def raises_result_type_in_place() -> None:
    x = torch.zeros(3, dtype=torch.long)
    x += torch.randn(3)


def raises_mean_of_integers() -> None:
    torch.arange(3).mean()


def raises_bool_subtract() -> None:
    torch.tensor([True]) - torch.tensor([False])


def raises_numpy_bfloat16() -> None:
    torch.zeros(2, dtype=torch.bfloat16).numpy()


def raises_meta_copy() -> None:
    nn.Linear(2, 2, device="meta").to("cpu")


def raises_cpu_out_of_memory() -> None:
    torch.empty(10**15)


def raises_cuda_not_compiled() -> None:
    if torch.backends.cuda.is_built():  # a build with CUDA says something else without a device
        raise AssertionError("Torch not compiled with CUDA enabled")
    torch.zeros(2, device="cuda")


def raises_index_put_dtype() -> None:
    torch.zeros(3)[torch.tensor([0])] = torch.ones(1).half()


# indices


def raises_embedding_index() -> None:
    nn.Embedding(10, 4)(torch.tensor([12]))


def raises_label_out_of_range() -> None:
    F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 5]))


def raises_index_out_of_bounds__gather() -> None:
    torch.gather(torch.randn(2, 3), 1, torch.tensor([[7]]))


def raises_index_out_of_bounds() -> None:
    torch.randn(4)[9]


def raises_one_hot_range() -> None:
    F.one_hot(torch.tensor([0, 5]), num_classes=3)


# numerics


def raises_distribution_parameter() -> None:
    # torch.compile switches it off for the process
    torch.distributions.Normal(
        torch.tensor([float("nan")]), torch.tensor([1.0]), validate_args=True
    )


def raises_distribution_value() -> None:
    torch.distributions.Bernoulli(0.5, validate_args=True).log_prob(torch.tensor(2.0))


def raises_multinomial_probabilities() -> None:
    torch.multinomial(torch.tensor([0.2, float("nan")]), 1)


def raises_probability_range() -> None:
    F.binary_cross_entropy(torch.tensor([1.5]), torch.tensor([1.0]))


def raises_not_positive_definite() -> None:
    torch.linalg.cholesky(-torch.eye(3))


def raises_singular_matrix() -> None:
    torch.linalg.inv(torch.zeros(2, 2))


def raises_decomposition_of_nan() -> None:
    torch.linalg.eigh(torch.full((3, 3), float("nan")))


def raises_nan_to_integer() -> None:
    int(torch.tensor(float("nan")).item())


def raises_nonfinite_gradient_norm() -> None:
    layer = nn.Linear(2, 1)
    (layer(torch.ones(1, 2)) * float("inf")).sum().backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)


def raises_nan_in_sklearn_input() -> None:
    from sklearn.linear_model import LinearRegression

    LinearRegression().fit([[float("nan")], [1.0]], [0.0, 1.0])


def raises_dtype_half_products() -> None:
    torch.ones(2, 3) @ torch.ones(3, 2).half()


def raises_input_and_weight_dtype() -> None:
    torch.nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2, dtype=torch.float64))
