"""Names of ATen operations, grouped by what they compute."""

from __future__ import annotations

RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
WEIGHT = RECURRENT | {
    "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum", "bilinear",
    # Of several experts, each for its own rows: torch's, and what transformers has where a device lacks it.
    "_grouped_mm", "grouped_mm", "grouped_mm_fallback",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
}  # fmt: skip
CONVOLUTION = {name for name in WEIGHT if name.startswith("conv")}
BATCH_NORM = {"batch_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "sync_batch_norm"}
NORM = BATCH_NORM | {
    "group_norm", "native_group_norm", "layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm",
    "instance_norm",
}  # fmt: skip
ACTIVATION = {
    "relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "hardtanh", "tanh",
    "sigmoid", "hardswish", "hardsigmoid", "mish", "softplus", "softsign", "hardshrink", "softshrink", "threshold",
    "log_sigmoid", "clamp", "clamp_min",
}  # fmt: skip
# These keep the values; only the memory layout or the precision changes.
LAYOUT = {
    "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "view", "_unsafe_view", "reshape", "permute",
    "transpose", "t", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "to", "_to_copy", "type_as",
    "movedim", "moveaxis", "swapaxes", "swapdims", "mT", "numpy_T", "channel_shuffle", "float", "half", "bfloat16",
}  # fmt: skip
# These read the shape and dtype of their argument, never its values.
SHAPE_ONLY = {
    "new_empty", "new_zeros", "new_ones", "new_full", "empty_like", "zeros_like", "ones_like", "full_like",
    "rand_like", "randn_like", "randint_like", "sym_size", "sym_numel", "sym_stride", "_assert_tensor_metadata",
    "_assert_scalar",
}  # fmt: skip
ELEMENTWISE = ACTIVATION | LAYOUT | {
    "add", "sub", "rsub", "mul", "div", "pow", "square", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "exp", "log",
    "erf", "sin", "cos", "where", "minimum", "maximum", "clamp_max", "log1p", "expm1", "addcmul", "addcdiv", "lerp",
    "getitem", "sign",
}  # fmt: skip
REDUCTION = {"mean", "var", "std", "var_mean", "sum", "amax", "adaptive_avg_pool2d", "avg_pool2d"}
LENGTHS = {"norm", "linalg_vector_norm", "linalg_norm"}
ROOT = LENGTHS | {"sqrt", "rsqrt", "pow", "std"}
POOLING = {
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "max_pool2d_with_indices", "fft_fft2",
    "fft_fft", "fft_rfft2", "fft_rfftn", "mean", "cumsum", "softmax", "scaled_dot_product_attention",
}  # fmt: skip
# These copy an activation.
COPYING = {"expand", "repeat", "repeat_interleave", "stack", "cat", "tile"}
SOFTMAX = {"softmax", "_softmax"}
ATTENTION = {"scaled_dot_product_attention"}
DROPOUT = {"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
