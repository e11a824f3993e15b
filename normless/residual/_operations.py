"""Names of ATen operations, grouped by what they compute; every module that recognizes operations reads them here."""

from __future__ import annotations

from normless.recording._tape import SHAPE_ONLY as SHAPE_ONLY

RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
CONVOLUTION = {
    "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip
# Products of two activations, as of queries and keys; those of the second set take operands in any order of axes.
PLAIN_PRODUCT = {"matmul", "bmm", "mm"}
NAMED_PRODUCT = {"einsum", "baddbmm"}
PRODUCT = PLAIN_PRODUCT | NAMED_PRODUCT
WEIGHT = RECURRENT | CONVOLUTION | PRODUCT | {
    "linear", "addmm", "bilinear",
    # Of several experts, each for its own rows: torch's, and what transformers has where a device lacks it.
    "_grouped_mm", "grouped_mm", "grouped_mm_fallback",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
}  # fmt: skip
# These add and multiply in one operation, so no operation returns the product alone.
FUSED_SUM = {"addmm", "baddbmm", "addbmm", "addcmul", "addcdiv", "addmv"}

# These add to the elements at given indices, or to several tensors at once.
INDEXED_SUM = {"index_add", "index_put", "index_reduce", "scatter_add", "scatter_reduce", "_foreach_add"}

BATCH_NORM = {"batch_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "sync_batch_norm"}
GROUP_NORM = {"group_norm", "native_group_norm", "instance_norm"}
NORM = BATCH_NORM | GROUP_NORM | {"layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"}
ACTIVATION = {
    "relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "hardtanh", "tanh",
    "sigmoid", "hardswish", "hardsigmoid", "mish", "softplus", "softsign", "hardshrink", "softshrink", "threshold",
    "log_sigmoid", "clamp", "clamp_min",
}  # fmt: skip
NONLINEAR = ACTIVATION | {"pow", "square", "sqrt", "exp", "erf", "abs", "where", "maximum"}
SOFTMAX = {"softmax", "_softmax"}
LOG_SOFTMAX = {"log_softmax", "_log_softmax"}
ATTENTION = {"scaled_dot_product_attention"}
DROPOUT = {"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
RANDOM = {"bernoulli", "normal", "rand", "rand_like", "randn", "randn_like", "uniform"}
# These may select by values, so that other examples may reach other layers.
SELECT_BY_VALUE = {"topk", "argmax", "sort", "argsort", "multinomial", "one_hot"}

# These keep all values in their order; the shapes show the axis of the channels.
RESHAPE_AS = {"reshape_as", "view_as"}
RESHAPE = {
    "view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "alias",
}  # fmt: skip
# These keep the values; only the memory layout or the precision changes.
LAYOUT = RESHAPE | {
    "detach", "lift_fresh_copy", "permute", "transpose", "t", "view_as", "to", "_to_copy", "type_as", "movedim",
    "moveaxis", "swapaxes", "swapdims", "mT", "numpy_T", "channel_shuffle", "float", "half", "bfloat16",
}  # fmt: skip
# These return a part of a tensor, which shares its memory.
PART = {"select", "slice", "unbind", "getitem"}
SPLIT = {"split", "split_with_sizes", "chunk", "tensor_split", "unbind"}
VIEW = {"view", "slice", "select", "permute", "transpose", "narrow", "unsqueeze", "squeeze", "getitem", "diagonal"}
# These select, rearrange or repeat elements, by arguments that are no tensors.
MOVING = (LAYOUT | PART | SPLIT | {"expand", "repeat", "narrow", "repeat_interleave"}) - {
    "to", "_to_copy", "type_as", "float", "half", "bfloat16", "lift_fresh_copy", "channel_shuffle",
}  # fmt: skip
# These copy an activation.
COPYING = {"expand", "repeat", "repeat_interleave", "stack", "cat", "tile"}
ADDITION = {"add", "sub", "rsub", "lerp"}
ELEMENTWISE = ACTIVATION | LAYOUT | {
    "add", "sub", "rsub", "mul", "div", "pow", "square", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "exp", "log",
    "erf", "sin", "cos", "where", "minimum", "maximum", "clamp_max", "log1p", "expm1", "addcmul", "addcdiv", "lerp",
    "getitem", "sign",
}  # fmt: skip
REDUCTION = {"mean", "var", "std", "var_mean", "sum", "amax", "adaptive_avg_pool2d", "avg_pool2d"}
SQUARE_ROOT = {"sqrt", "rsqrt"}
LENGTHS = {"norm", "linalg_vector_norm", "linalg_norm"}
ROOT = LENGTHS | SQUARE_ROOT | {"pow", "std"}
# The operations of a norm that forward code writes out.
NORM_PARTS = ELEMENTWISE | REDUCTION | NORM | ROOT | {"expand", "expand_as", "split", "chunk", "slice"}
POOLING = {
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "max_pool2d_with_indices", "fft_fft2",
    "fft_fft", "fft_rfft2", "fft_rfftn", "mean", "cumsum", "softmax", "scaled_dot_product_attention",
}  # fmt: skip
CONTROL_FLOW = {"cond", "while_loop", "scan", "map_impl", "map"}

# Between the product of queries and keys and the softmax: scaling, masks, the shift of relative positions.
BEFORE_SOFTMAX = LAYOUT | {
    "add", "sub", "mul", "div", "slice", "pad", "masked_fill", "expand", "where", "clamp", "dropout",
}  # fmt: skip
# Between the softmax and the product with values; "linear" mixes the heads (talking heads).
AFTER_SOFTMAX = {"linear", "dropout", "native_dropout", "expand", "mul", "div", "getitem", "select", "slice"}
# Between the softmax of a router and the share of an expert: shares are selected, and divided by their sum.
AFTER_ROUTER = {"topk", "getitem", "index", "gather", "div", "select", "slice", "expand", "dropout"}
# These accept logits of zero and have a nonzero gradient there.
READS_LOGITS = LAYOUT | SOFTMAX | LOG_SOFTMAX | {
    "sigmoid", "log_sigmoid", "softplus", "exp", "logsumexp", "add", "sub", "rsub", "neg", "mean", "sum", "slice",
    "select", "split", "split_with_sizes", "chunk", "unbind", "getitem", "narrow", "cat", "stack", "index",
    "index_select", "gather", "expand", "repeat", "dropout", "native_dropout", "where", "masked_fill", "avg_pool1d",
    "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "upsample_bilinear2d", "upsample_nearest2d",
    "upsample_bicubic2d", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d",
    "binary_cross_entropy_with_logits", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "argmax", "topk",
    "max", "amax",
}  # fmt: skip
# These return a tensor in new memory.
NEW_MEMORY = ACTIVATION | CONVOLUTION | {
    "linear", "addmm", "bmm", "matmul", "add", "sub", "mul", "addcmul", "batch_norm",
}  # fmt: skip
# The degree of homogeneity of the result is that of the arguments, which is equal for all.
SAME_DEGREE = {
    "expand", "broadcast_to", "select", "slice", "narrow", "split", "chunk", "unbind", "index", "index_select",
    "getitem", "sum", "mean", "norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "abs", "amax",
    "amin", "max", "min", "std", "neg", "relu", "diagonal", "tril", "triu", "flip", "roll", "cat", "stack",
    "var_mean", "matrix_H", "adjoint", "conj", "clamp", "clamp_min", "clamp_max", "maximum", "minimum",
    "repeat", "linalg_svdvals", "trace", "add", "sub", "rsub", "lerp",
}  # fmt: skip
# The degree of the result is the sum of those of the arguments.
SUM_OF_DEGREES = {"mul", "matmul", "mm", "bmm", "mv", "dot", "vdot", "einsum", "linear", "outer", "conv2d", "kron"}
