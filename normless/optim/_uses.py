"""The parts of a network's weights for different optimizers, and the kinds of networks that decay γ."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless._internal.reach import reachable
from normless.residual import ResidualMap
from normless.residual._description import with_article
from normless.residual._operations import BATCH_NORM, WEIGHT


def follows_guidelines(model: nn.Module, residual_map: ResidualMap) -> tuple[bool, str]:
    """Return whether the guidelines on the γ of batch norms apply to this network, and why.

    They apply to residual networks in which all norms with a γ are batch norms. For transformers they did not hold
    at small scale, and the usual recipes of language models and vision transformers do not decay γ.
    """
    norms = [layer for layer in map(residual_map.by_path.__getitem__, residual_map.norms) if layer.gamma is not None]
    others = [layer for layer in norms if not _is_batch_norm(layer.path, model, residual_map)]
    if not norms:
        return False, "it has no norm with a γ"
    if not residual_map.blocks:
        return False, "it has no residual blocks, so no γ decays"
    if others:
        return (
            False,
            f"{others[0].path} is not a batch norm but {with_article(others[0].description)}, so no γ decays",
        )
    return True, "a residual network with batch norms: γ_last and γ_others decay, γ_down and γ_0 do not (Kim et al.)"


def _is_batch_norm(path: str, model: nn.Module, residual_map: ResidualMap) -> bool:
    owner, _, function = path.partition(":")
    if function:
        return function.rstrip("_0123456789") in BATCH_NORM
    if isinstance(model.get_submodule(owner), _BatchNorm):
        return True
    operations = residual_map.flow.operations
    return any(operation.name in BATCH_NORM and owner in operation.modules for operation in operations)


def parts_of_weights(model: nn.Module, residual_map: ResidualMap) -> dict[int, str]:
    """Return the part of each weight, `embedding`, `head` or `hidden`, by the id of the parameter.

    `embedding` are lookup tables, learned positions that are added, and, in a network without tables, the weight of
    the first layer, which reads the inputs. `head` are the weights after the blocks that compute the outputs.
    `hidden` are the matrices of all other layers. Kernels of convolutions and weights with more than two axes have no
    part, since Muon is for matrices.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    operations = residual_map.flow.operations
    looked_up = {
        name for operation in operations if operation.name.startswith("embedding") for name in operation.parameters
    }
    tables = {id(named[name]) for name in looked_up} | {
        id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    layers = [layer for layer in residual_map.layers() if layer.kind == "weight"]
    parts = {id(named[name]): "hidden" for layer in layers for name in layer.parameters if named[name].dim() == 2}
    if not tables and len(layers) > 1:
        parts |= {id(named[name]): "embedding" for name in layers[0].parameters}
    added = {name for operation in operations for name in operation.added if named[name].dim() > 1}
    parts |= {id(named[name]): "head" for name in head_parameters(model, residual_map)}
    return parts | dict.fromkeys((*tables, *(id(named[name]) for name in added)), "embedding")


def head_parameters(model: nn.Module, residual_map: ResidualMap) -> set[str]:
    """Return the names of the parameters of the layers outside blocks that compute the outputs."""
    named = dict(model.named_parameters(remove_duplicate=False))
    layers = residual_map.head_layers if residual_map.blocks else residual_map.stem_layers
    outside = {id(named[name]) for layer in layers for name in layer.parameters}
    flow = residual_map.flow
    if flow is None:
        path = residual_map.classifier
        return set() if path is None else set(residual_map.by_path[path].parameters)

    def is_layer(at: int) -> bool:
        return flow[at].name in WEIGHT and bool(flow[at].parameters)

    last = filter(is_layer, reachable(flow.outputs, lambda at: () if is_layer(at) else flow[at].parents))
    return {name for at in last for name in flow[at].parameters if id(named[name]) in outside}
