"""Checks of weights that keep each other from learning: units that stay equal, and products of two zeros."""

from __future__ import annotations

from torch import nn

from normless.doctor.facts.examination import Examination
from normless.doctor.findings import Evidence, Steps, check, finding

# Calls that multiply.
FACTORS = {"mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply", "matmul", "__matmul__", "__rmatmul__", "mm"}
FACTORS |= {"bmm", "einsum"}


@check("equal units")
def check_equal_units(exam: Examination) -> Steps:
    """Look for layers with units of equal weights and equal gradients."""
    alike = exam.passed.alike
    if alike:
        shape = exam.model.get_parameter(alike[0]).shape
        evidence: Evidence = {"layers": len(alike), "units": shape[0], "parameter": alike[0]}
        yield finding("identical_units", [name.rpartition(".")[0] for name in alike], evidence)
    return f"{len(alike)} layers with equal units"


def stuck_zeros(exam: Examination) -> list[str]:
    """Return the weights that are zero and get no gradient because another factor of a product is zero.

    A zero weight or multiplier that gets a gradient opens the others in its first step. In residual branches, two
    weights of a module must be zero while its other parameters get a gradient.
    """
    gradients, parameters = exam.passed.gradients, dict(exam.model.named_parameters())
    factors = _factors(exam)
    zero = [name for name, parameter in parameters.items() if name in factors and not bool(parameter.any())]
    if any(gradients.get(name) for name in zero):
        return []
    blocks = exam.map.walk() if exam.map else ()
    inside = {name for block in blocks for layer in block.layers for name in layer.parameters}
    closed = [name for name in zero if parameters[name].dim() > 1 and not gradients.get(name)]
    # A token or position at zero may be the input that a single zero weight waits for.
    is_open = any(
        gradients.get(name) for name, value in parameters.items() if value.dim() > 1 and not bool(value.any())
    )
    stuck = set() if is_open else {name for name in closed if name not in inside}
    by_module: dict[str, list[str]] = {}
    for name in closed:
        by_module.setdefault(_outer(name), []).append(name)
    for module, names in by_module.items():
        others = (value for name, value in gradients.items() if _outer(name) == module and name not in names)
        if len(names) > 1 and any(others):
            stuck |= set(names)
    return [name for name in closed if name in stuck] + _zero_attention(exam)


def _factors(exam: Examination) -> set[str]:
    """Return the parameters that multiply others' results: weights of layers, and factors of products.

    Added terms, such as tokens and positions, do not open a product by growing.
    """
    layers = {id(parameter) for event in exam.passed.events for parameter in event.parameters if parameter.dim() > 1}
    layers |= {id(event.parameters[0]) for event in exam.passed.events if event.kind == "norm" and event.parameters}
    read = {
        source.origin().name
        for call in exam.passed.flow.calls
        if call.name in FACTORS
        for source in call.sources()
        if source.origin().kind == "parameter"
    }
    return read | {name for name, parameter in exam.model.named_parameters() if id(parameter) in layers}


def _outer(name: str) -> str:
    """Return the module around the layer of a parameter."""
    return name.rpartition(".")[0].rpartition(".")[0]


def _zero_attention(exam: Examination) -> list[str]:
    """Return the packed weights of torch's attentions whose queries and keys are zero, with their biases."""
    found = []
    for path, module in exam.model.named_modules():
        if not isinstance(module, nn.MultiheadAttention) or not isinstance(module.in_proj_weight, nn.Parameter):
            continue
        packed = (module.in_proj_weight, module.in_proj_bias)
        name = f"{path}.in_proj_weight".lstrip(".")
        is_zero = not any(bool(tensor[: 2 * module.embed_dim].any()) for tensor in packed if tensor is not None)
        found += [name] if is_zero and exam.passed.gradients.get(name) else []
    return found
