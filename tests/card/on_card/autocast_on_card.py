"""Autocast on the simulated card: which operations compute in lower precision, and which in float32, as on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

KEY = "AutocastPrivateUse1"
# torch's lists for CUDA, but for what no network has.
LOWER = (
    *("_convolution", "conv1d", "conv2d", "conv3d", "convolution", "prelu", "linear", "matmul", "einsum", "mm", "mv"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "addmm", "addmv", "addr", "addbmm"),
    *("baddbmm", "bmm", "chain_matmul", "scaled_dot_product_attention"),
)
FLOAT32 = (
    *("acos", "asin", "cosh", "sinh", "tan", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "softplus"),
    *("reciprocal", "rsqrt", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "logsumexp", "cdist", "cosine_similarity"),
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "nll_loss", "nll_loss2d", "kl_div", "mse_loss"),
    *("l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "prod", "prod.dim_int"),
    *("softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "sum", "sum.dim_IntList"),
)


def register_autocast(everything: torch.library.Library, aten: torch.library.Library) -> None:
    """Register the two lists for the card; all other operations take what they get."""
    everything.fallback(torch.library.fallthrough_kernel, KEY)
    for name in LOWER:
        aten.impl(name, _cast(name, lambda: torch.get_autocast_dtype("card")), KEY)
    for name in FLOAT32:
        aten.impl(name, _cast(name, lambda: torch.float32), KEY)


def overload(name: str) -> Any:
    """The operation of a name as ``sum.dim_IntList``."""
    packet, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


def _cast(name: str, kind: Callable[[], torch.dtype]) -> Callable[..., Any]:
    operation = overload(name)

    def cast(*args: Any, **kwargs: Any) -> Any:
        def placed(value: Tensor) -> Tensor:
            takes = value.is_floating_point() and value.device.type == "card" and value.dtype != torch.float64
            return value.to(kind()) if takes else value

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return operation(*tree_map_only(Tensor, placed, args), **tree_map_only(Tensor, placed, kwargs))

    return cast
