"""Families of torch's public functions, by the names that `names.canonical` gives them. A name may
belong to several families, and stands in each at most once.

A rule that needs nearly a family says so: `(*DOWNCASTS, "type_as")`, with the reason beside it.
"""

from __future__ import annotations

# --- losses ---

CLASSIFICATION = ("cross_entropy", "nll_loss")
"""Losses of scores of several classes and the number of the right one."""

BINARY = "binary_cross_entropy_with_logits"
BINARIES = ("binary_cross_entropy", BINARY)
"""Losses of yes or no: targets are 0, 1 or between. `BINARY` takes logits and applies the sigmoid
itself."""

REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
"""torch's losses whose first argument is what the model says and whose second is what it should
say."""

OF_SIGNS = (
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
)
"""Losses whose target is 1 or -1, the last of their tensors."""

OF_TRIPLETS = ("triplet_margin_loss", "triplet_margin_with_distance_loss")
"""Losses of an anchor, a sample like it and one unlike it, in this order."""

SUPERVISED = (
    *CLASSIFICATION,
    *REGRESSION,
    *BINARIES,
    "kl_div",
    "ctc_loss",
    "soft_margin_loss",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "gaussian_nll_loss",
    "poisson_nll_loss",
)
"""Losses of a prediction, first, and its target, second."""

LOSSES = tuple(dict.fromkeys((*SUPERVISED, *OF_SIGNS, *OF_TRIPLETS, "multilabel_margin_loss")))
"""All loss functions of torch.nn.functional; `soft_margin_loss` is of two families."""

# --- layers ---

LINEAR = ("linear", "bilinear")
"""What torch.nn.Linear and Bilinear call."""

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
"""Convolutions that read their input at its own resolution or a lower one."""

MATRIX_PRODUCTS = ("matmul", "mm", "bmm", "mv", "einsum", "addmm", "baddbmm")
"""Products of matrices and vectors, with or without something added. `einsum` multiplies along any
dimensions: a rule that asks which dimension is summed over must leave it out."""

BATCHED_PRODUCTS = ("matmul", "bmm")
"""Products over the last dimension of the first factor and the last but one of the second. `einsum`
is none of them: it sums over any dimension, which the shapes alone do not tell."""

READERS = ("linear", *CONVOLUTIONS)
"""What the first layer of a network that reads numbers calls."""

LINEAR_MAPS = (*LINEAR, *CONVOLUTIONS, *MATRIX_PRODUCTS)
"""Weighted sums of what they are given."""

SIMILARITIES = (*MATRIX_PRODUCTS, "cosine_similarity")
"""They say how alike vectors are: the larger, the more alike."""

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions that the layers of torch call that read a whole sequence step by step."""

CELLS = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
"""One step of a recurrence."""

ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
"""torch's attention: queries, keys and values in, weighted values out."""

LAYERS = (
    *LINEAR,
    *MATRIX_PRODUCTS,
    *CONVOLUTIONS,
    "embedding",
    "scaled_dot_product_attention",
    *RECURRENT,
    *CELLS,
)
"""Functions that layers with weights call, and products that are written out instead."""

NORMALISATIONS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
"""They give their input a mean of 0, or a size of 1, over some of its dimensions."""

POSITION_NORMALISATIONS = ("layer_norm", "rms_norm")
"""Of the normalisations, those that treat each position of a sequence by itself."""

DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
    "feature_dropout",
)
"""They set values or channels to 0 at random while a model trains."""

# --- activations and probabilities ---

RECTIFIERS = ("relu", "relu6", "hardtanh", "threshold", "clamp_min")
"""They are flat on one side or both, with a corner: a unit can be dead."""

SQUASHERS = ("sigmoid", "tanh")
"""They are nearly flat far from 0: a unit can be saturated."""

SOFTMAXES = ("softmax", "log_softmax")
"""Probabilities over a dimension, and their logarithms."""

NORMALISERS = ("softmax", "sigmoid")
"""They make probabilities of scores."""

LOG_PROBABILITIES = ("log_softmax", "logsigmoid")
"""What losses written by hand pick those of the labels from."""

# --- arithmetic ---

ADDITIONS = ("add", "sub")
"""Sums and differences: `a + b`, `1 - a`."""

FACTORS = ("mul", "div")
"""Products and quotients, element by element: with a number they change the scale."""

SCALINGS = (*FACTORS, "neg")
"""With a number they change the scale or the sign, and nothing else."""

LOGARITHMS = ("log", "log2", "log10", "log1p")
"""They turn products into sums, and are -inf at the end of their domain."""

POWERS = ("pow", "square")
"""They multiply a value with itself."""

NORMS = ("norm", "linalg_norm", "linalg_vector_norm")
"""The size of a vector or a matrix, as one number for each."""

DISTANCES = ("cdist", "pairwise_distance")
"""How far vectors are from each other: the larger, the less alike."""

SIZES = (*POWERS, "abs", *NORMS)
"""They make a distance of a difference."""

CLAMPS = ("clamp", "clamp_min", "clamp_max")
"""They put values beyond a bound on the bound."""

OF_TWO = ("min", "max", "minimum", "maximum", "amin", "amax")
"""Of two values they take one, by its size."""

COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le")
"""They give True or False for each pair of values."""

REDUCTIONS = ("sum", "mean")
"""They add up values, or take their mean."""

MEANS = ("mean", "nanmean")
"""They divide by a count, which may be 0."""

VARIANCES = ("std", "var", "std_mean", "var_mean")
"""They divide by a count less one, which may be 0."""

# --- values in another form or order ---

CASTS = ("to", "type", "type_as", "float", "double", "half", "bfloat16")
"""The same numbers in another floating type, up to rounding, or on another device."""

COPIES = ("contiguous", "clone")
"""The same values, in memory of their own."""

RESHAPING = ("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten")
"""They give the same values, in the same order, another shape."""

TRANSPOSES = ("transpose", "permute", "movedim", "t")
"""They put dimensions in another order."""

KEEPING_AXES = (
    *REDUCTIONS,
    "nanmean",
    *VARIANCES,
    *NORMS,
    "prod",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "median",
    "logsumexp",
    "any",
    "all",
)
"""They reduce an axis, and can keep it with size 1 (`keepdim`)."""

ALONG_ONE_AXIS = (
    *KEEPING_AXES,
    *SOFTMAXES,
    "cumsum",
    "cumprod",
    "topk",
    "cat",
    "stack",
    "chunk",
    "split",
    "unbind",
    "repeat_interleave",
)
"""They are told the axis that they work along."""

AXIS_THIRD = ("norm", "chunk", "split", "topk", "repeat_interleave")
"""Of these, those whose third argument is the axis; others take it second."""

LAYOUTS = (*TRANSPOSES, *RESHAPING, "squeeze", "unsqueeze")
"""They change what shape the same values have."""

FLIPS = ("flip", "fliplr", "flipud")
"""They turn the order along a dimension round."""

JOINS = ("cat", "stack", "hstack", "vstack")
"""They make one tensor of several."""

TAKES = (
    "getitem",
    "select",
    "narrow",
    "index_select",
    "gather",
    "take_along_dim",
    "masked_select",
)
"""They take some of a tensor's values, by position or by a mask."""

EXPANSIONS = ("expand", "expand_as", "broadcast_to", "broadcast_tensors")
"""A dimension of size 1 becomes larger, without memory of its own."""

# --- masks and choices ---

MASKING = ("masked_fill", "where")
"""They put something else where a mask says so."""

SCORE_MASKING = (*MASKING, "add", "sub")
"""Ways to mask scores: by a choice, or by adding a large negative number."""

MASK_MAKERS = (
    *("tril", "triu", "ones", "zeros", "full", "ge", "gt", "le", "lt", "logical_not", "invert"),
)
"""Calls that masks of positions are made with."""

PLACING = ("masked_scatter", "index_put", "index_fill", "index_copy", "scatter")
"""They put values into places of a tensor, by a mask or by positions."""

CHOICES = ("argmax", "argmin", "max", "min", "topk")
"""They give positions, or values with their positions."""

# --- tensors without a history ---

GRAD_MODES = ("no_grad", "inference_mode", "set_grad_enabled", "enable_grad")
"""Context managers and decorators that switch the recording of operations for backward."""

DRAWS = ("rand", "normal")
"""How the names of functions begin whose values are drawn at random: `rand_like`, `randn`."""

UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
"""They give memory that nothing has been written to."""

FRESH = (
    *("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"),
    *("rand_like", "randn_like", "randint_like", "empty_like", "new_empty", "new_empty_strided"),
)
"""They take the shape, the type or the device of a tensor, and none of its values."""

FROM_ARRAYS = ("from_numpy", "as_tensor", "asarray", "tensor")
"""They make a tensor of numbers that torch has not computed."""

BY_ROW = ("add", "sub", "mul", "div", "minimum", "maximum", "min", "max", "gather")
"""They combine two tensors row by row, where both have as many."""

TO_COLUMNS = ("split", "split_with_sizes", "chunk", "tensor_split", "unbind")
"""They take a tensor apart, mostly along its last dimensions."""

TURNING = ("t", "transpose", "permute", "movedim", "adjoint")
"""They give a tensor's dimensions in another order."""

ADDED_UP = (*ADDITIONS, *SCALINGS, "mean", "sum")
"""On the way of a term to the loss that it is added to."""

SAME_NUMBERS = (*COPIES, *RESHAPING, "detach", "squeeze", "unsqueeze", "to")
"""They give all numbers that they are given, in their order."""
