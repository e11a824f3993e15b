"""What each class contributes to the gradients of the parameters (Bjorck et al., appendix L, figures 20 and 21).

The gradient with respect to the logits is set to zero for all classes but one and sent back through the network;
once for each class. Going back is linear, so that the gradients of the classes add up to the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.arguments import arguments_of
from normless.probes import Loss, compute_logits, layer_table, parameter_positions, preserve_state, require_known
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

Gradients = dict[str, Tensor]
COLUMNS = ("class", "parameter", "order", "layer", "block", "mean_abs", "norm", "share", "predicted_share")


def for_each_class(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    visit: Callable[[int, float, Gradients], None],
    *,
    parameters: Sequence[str] | None = None,
    classes: Sequence[int] | None = None,
    class_axis: int = -1,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> None:
    """Go forward once, and back once for each class with the other classes' logit gradients at zero.

    The network is left as it was; only one class's gradients are held at a time.

    Args:
        model: a network.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        targets: what `loss` takes beside the logits.
        visit: is called for each class with its index, the share of examples that predict it, and the gradients by
            the parameters' qualified names; zero where a parameter plays no part.
        parameters: qualified names; every trainable one if None. Those near the logits alone cost less.
        classes: indices along the axis of classes; all if None.
        class_axis: the logits' axis of classes.
        loss: (logits, targets) to a scalar.
        training: whether norms use the batch's statistics.

    Raises:
        ValueError: a parameter or class that the network does not have, none that is trainable, or no logits.
    """
    known = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    require_known(parameters, known, "trainable parameter")
    chosen = list(known if parameters is None else dict.fromkeys(parameters))
    if not chosen:
        raise ValueError(f"Gradients of parameters are measured, and this {type(model).__name__} has none to train.")
    with preserve_state(model, training=training), torch.enable_grad():
        logits = compute_logits(model, inputs)
        whole = torch.autograd.grad(loss(logits, targets), logits, retain_graph=True)[0]
        count = logits.shape[class_axis]
        wanted = range(count) if classes is None else classes
        if any(not 0 <= index < count for index in wanted):
            raise ValueError(f"The logits have the classes 0 to {count - 1}, not {', '.join(map(str, wanted))}.")
        predicted = logits.detach().argmax(class_axis).flatten().bincount(minlength=count).double()
        shares: list[float] = (predicted / predicted.sum()).tolist()
        for index in wanted:
            masked = torch.zeros_like(whole)
            masked.select(class_axis, index).copy_(whole.select(class_axis, index))
            found = torch.autograd.grad(
                logits, [known[name] for name in chosen], masked, retain_graph=True, materialize_grads=True
            )
            visit(index, shares[index], dict(zip(chosen, found, strict=True)))


def classwise_gradients(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    parameters: Sequence[str] | None = None,
    *,
    classes: Sequence[int] | None = None,
    class_axis: int = -1,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """The size of every parameter's gradient by class (Bjorck et al., figure 21); arguments as for `for_each_class`.

    Returns:
        A row per class and parameter: `class`, `parameter`, its `order`, `layer` and `block`, `mean_abs` and `norm`
        of the gradient's elements, `share`, the part of the sum of `mean_abs` over the classes measured, and
        `predicted_share`, the share of examples whose largest logit the class is.
    """
    positional, named = arguments_of(inputs)
    found = find_residual_map(model, *positional, **named) if residual_map is None else residual_map
    where, rows = parameter_positions(model, found), []

    def visit(index: int, predicted: float, gradients: Gradients) -> None:
        for name, gradient in gradients.items():
            sizes = {"mean_abs": float(gradient.double().abs().mean()), "norm": float(gradient.double().norm())}
            place = {"parameter": name, **where[name].columns()}
            rows.append({"class": index} | place | sizes | {"predicted_share": predicted})

    for_each_class(
        model,
        inputs,
        targets,
        visit,
        parameters=parameters,
        classes=classes,
        class_axis=class_axis,
        loss=loss,
        training=training,
    )
    table = layer_table(rows, COLUMNS)
    sums = table.groupby("parameter")["mean_abs"].transform("sum")
    table["share"] = table["mean_abs"] / sums.where(sums > 0)
    return table


def classwise_elements(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    parameter: str,
    *,
    classes: Sequence[int] | None = None,
    class_axis: int = -1,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> pd.DataFrame:
    """The gradient of every element of one parameter by class (Bjorck et al., figure 20); see `for_each_class`.

    Returns:
        A row per class and element: `class`, `parameter`, `element` (index in the flattened parameter) and
        `gradient`.
    """
    parts: list[pd.DataFrame] = []

    def visit(index: int, predicted: float, gradients: Gradients) -> None:
        values = gradients[parameter].double().flatten().cpu().numpy()
        row = {"class": index, "parameter": parameter, "element": np.arange(len(values)), "gradient": values}
        parts.append(pd.DataFrame(row))

    for_each_class(
        model,
        inputs,
        targets,
        visit,
        parameters=[parameter],
        classes=classes,
        class_axis=class_axis,
        loss=loss,
        training=training,
    )
    return pd.concat(parts, ignore_index=True)
