"""Differentially private training of converted networks with Opacus.

DP-SGD clips the gradient of every single example, so Opacus hooks each layer and computes these gradients from the
layer's input and its output's gradient. Importing this module teaches it that for scalar layers, on which Opacus' way
for unknown layers takes twice the time, and for residual sums, where it fails. It does for all other layers of
normless. `prepare` removes what Opacus' hooks cannot bear.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeVar

from opacus.grad_sample import register_grad_sampler
from torch import nn

from normless.arguments import forward_arguments
from normless.edits import Surgery
from normless.errors import UnsupportedEditError
from normless.integrations.per_example import scalar_layer_gradients, sum_gradients
from normless.nn import ResidualSum
from normless.nn.affine import ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear
from normless.residual import residual_map

Model = TypeVar("Model", bound=nn.Module)

register_grad_sampler([ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear])(scalar_layer_gradients)
register_grad_sampler(ResidualSum)(sum_gradients)


def prepare(model: Model, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> Model:
    """A copy of a residual network in which no activation and no residual sum works in place.

    torch forbids writing in place on the output of a layer that carries Opacus' hooks. torchvision's blocks do so
    (`out += identity`, `ReLU(inplace=True)`), whether normless took their norms out or Opacus' `ModuleValidator.fix`
    replaced them. Function and parameters stay the same. What else works in place stays; torch refuses it by itself.

    Args:
        model: a residual network, converted or not; it is left as it is.
        inputs, kwargs: example inputs, by position and by name, by which its forward code is read.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple or a dictionary.

    Raises:
        UnresolvedStructureError: its residual structure could not be read.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    surgery = Surgery(deepcopy(model), residual_map(model, *inputs, **kwargs), inputs, kwargs)
    for layer in surgery.map.layers():
        with suppress(UnsupportedEditError):
            surgery.not_in_place(layer)
    for block in surgery.map.walk():
        with suppress(UnsupportedEditError):
            surgery.sums(block)
    assert isinstance(surgery.model, type(model))
    return surgery.model
