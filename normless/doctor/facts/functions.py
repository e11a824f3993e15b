"""The names of torch's functions, by what they do."""

from __future__ import annotations

from functools import cache

# Calls that keep values and change only their shape, type or device, or select some of them.
MOVES = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "movedim",
    "swapaxes", "contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type", "cpu", "cuda",
    "expand", "expand_as", "view_as", "reshape_as", "narrow", "select", "chunk", "split", "unbind",
    "tensor_split", "__getitem__", "index_select", "gather", "detach", "identity", "dropout", "ravel",
    "type_as", "swapdims", "cat", "stack",
}  # fmt: skip
# Products of matrices.
PRODUCTS = {
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "linear", "spmm", "smm",
    "_sparse_mm", "sparse_mm",
}  # fmt: skip
# Calls that draw random numbers.
DRAWN = ("rand", "normal", "bernoulli")
# Calls that make tensors from values without a history.
VALUES = frozenset({"tensor", "as_tensor", "from_numpy", "asarray"})
_KINDS = {
    "weight": "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bilinear embedding "
    "embedding_bag lstm gru rnn_tanh rnn_relu multi_head_attention_forward addmm",
    "norm": "layer_norm group_norm instance_norm batch_norm rms_norm",
    "activation": "relu relu_ leaky_relu leaky_relu_ elu selu gelu silu mish softplus tanh tanh_ sigmoid sigmoid_ "
    "hardtanh relu6 hardsigmoid hardswish prelu rrelu celu logsigmoid softsign clamp clamp_min",
    "softmax": "softmax log_softmax",
    "attention": "scaled_dot_product_attention",
    "dropout": "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout",
}
KINDS = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# Losses of torch whose arguments have a meaning that their values show.
LOSSES = {
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "nll_loss", "kl_div",
    "ctc_loss", "soft_margin_loss", "hinge_embedding_loss", "cosine_embedding_loss", "margin_ranking_loss",
    "poisson_nll_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss",
}  # fmt: skip
_SAME = {
    "add": "radd iadd", "sub": "isub subtract", "rsub": "", "mul": "rmul imul multiply", "cat": "concat concatenate",
    "div": "truediv itruediv divide true_divide", "rdiv": "rtruediv", "matmul": "rmatmul", "pow": "ipow",
    "clamp": "clip",
}  # fmt: skip
_PLAIN = {other: name for name, others in _SAME.items() for other in others.split()}


@cache
def plain(name: str) -> str:
    """Return the name of a function without underscores, one for all ways to write an operator."""
    return _PLAIN.get(name.strip("_"), name.strip("_"))


def is_in_place(name: str) -> bool:
    """Whether a function writes into its first argument."""
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE


# Operations in place whose names do not end with one underscore.
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}
