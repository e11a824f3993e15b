"""Errors of maps, parameter groups, optimizers, probes, reference networks and saved networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import LBFGS
from torch.utils.data import DataLoader, TensorDataset
from written_networks import Written

import normless as nl
from errors.wrong import Wrong
from normless.errors import InputsError, UnresolvedStructureError, UnsupportedEditError
from normless.models import resnet_cifar, text_classifier, transformer, wide_resnet
from normless.models._spec import build_model, build_with_inputs
from normless.optim import parse_optimizer
from normless.probes._measure import every

ROWS, X = torch.ones(2, 6), torch.randn(4, 3, 8, 8)
BATCH = X, torch.arange(4)
NAN = float("nan")


def later(function: Any, *given: Any, **named: Any) -> Callable[[], object]:
    """A call that is made later."""
    return partial(function, *given, **named)


def within(forward: Callable[..., Any]) -> nn.Module:
    """A network whose inner module runs a function."""
    return nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.ReLU(), Written(forward)))


def hiding(name: str, inside: bool = True) -> nn.Module:
    """A module whose part has the name of a method."""
    hidden = Written(lambda m, x: x + m._modules[name](x), **{name: nn.Linear(6, 6)})
    return nn.Sequential(nn.ReLU(), hidden) if inside else hidden


def sparse() -> nn.Embedding:
    """A table with a sparse gradient."""
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    return table


def groups(**arguments: Any) -> object:
    return nl.param_groups(resnet_cifar(8), **{"lr": 0.1, "weight_decay": 0.01} | arguments)


def clipped(parameters: Any, **arguments: Any) -> object:
    return nl.optim.adaptive_gradient_clipping(parameters, **arguments)


LINEAR = nn.Linear(2, 2)
MAPS = [
    Wrong("map, branch on a size", lambda: nl.residual_map(within(lambda m, x: x.view(int(x.sum()) - 99)), ROWS),
          UnresolvedStructureError, "1.1", "a Written", "line ", "Check that forward takes"),
    Wrong("map, a derivative", lambda: nl.residual_map(within(lambda m, x: torch.autograd.backward(x.sum())), ROWS),
          UnresolvedStructureError, "1.1", "a Written", "line ", "derivative"),
    *(Wrong(f"map, {name}", later(nl.residual_map, hiding(name, name != "double"), ROWS),
            UnresolvedStructureError, f"{'1.' * (name != 'double')}{name} has the name of a method")
      for name in ("double", "half", "type")),
    Wrong("map, small image", lambda: nl.residual_map(nn.Sequential(nn.Conv2d(3, 4, 9)), torch.zeros(1, 3, 8, 8)),
          UnresolvedStructureError, "stopped in 0, a Conv2d", "Check that forward takes"),
    Wrong("map, no inputs", lambda: nl.residual_map(within(torch.add)), UnresolvedStructureError,
          "pass example inputs"),
    Wrong("map, a text returned", lambda: nl.residual_map(Written(lambda m, x: "nothing"), ROWS),
          UnresolvedStructureError, "forward returned neither a tensor"),
]  # fmt: skip
OPTIM = [
    *(Wrong(f"clipping, {clip} and {eps}", later(clipped, [], clip=clip, eps=eps),
            ValueError, "clip and eps above 0", f"clip={clip}", f"eps={eps}")
      for clip, eps in ((-1.0, 1e-3), (0.01, 0.0))),
    Wrong("clipping, sparse", lambda: clipped(sparse()), ValueError, "(5, 3) is sparse", "sparse=False"),
    *(Wrong(f"clipping, {named}{where}", call, TypeError, "a network or parameters",
          f"got an object of type {named}.")
      for one, named in ((torch.optim.SGD(LINEAR.parameters(), lr=0.1), "SGD"),
                         (list(LINEAR.named_parameters()), "tuple in a list"))
      for where, call in (("", later(clipped, one)),
                          (" left out", later(clipped, LINEAR, exclude=one)))),
    Wrong("groups, policy", lambda: groups(policy="everything"), ValueError, "'everything'",
          "guidelines, all, weights"),
    Wrong("groups, twice", lambda: groups(policy={"last": True, "gamma_last": 0.1}), ValueError, "gamma_last twice"),
    Wrong("groups, nan", lambda: groups(policy={"down": NAN}), ValueError, "nan for the group gamma_down"),
    Wrong("groups, decay", lambda: groups(weight_decay=-1e-4), ValueError, "weight_decay=-0.0001"),
    Wrong("groups, pattern", lambda: groups(policy="weights+*attention*+encoder.*"), ValueError,
          "matches *attention*, encoder.*, or a later"),
    Wrong("step in backward, LBFGS", later(nl.optim.step_in_backward, LBFGS(nn.Linear(2, 2).parameters())),
          ValueError, "LBFGS needs all gradients"),
    *(Wrong(f"optimizer {text}", later(parse_optimizer, text), ValueError, *words)
      for text, *words in (
          ("AdmW", "no optimizer 'AdmW'", "Did you mean AdamW?", "Rprop"),
          ("AdamW(weight_deacy=1)", "does not take weight_deacy", "Did you mean weight_decay?"),
          ("mine.py:Own", "There is no file mine.py"))),
]  # fmt: skip


SCHEMES = [
    *(Wrong(f"scheme {text}", later(nl.convert, resnet_cifar(8), text), ValueError, text.partition("(")[0])
      for text in (
          "partial_batch_norm(mean=maybe)", "fixup(biases=nope)", "batch_norm(initialization=hee)")),
    *(Wrong(f"scheme {text}", later(nl.convert, resnet_cifar(8), text), UnsupportedEditError, said)
      for text, said in (("skipinit(alpha=nan)", "nan"), ("zeroinit(dropout=1)", "1"),
                         ("ghost_batch_norm(size=0)", "0"))),
    Wrong("scheme lsuv without a batch", lambda: nl.convert(resnet_cifar(8), "lsuv"), UnsupportedEditError,
          "pass a batch"),
]  # fmt: skip
TRANSFORMER = "normless:transformer(vocabulary=13, layers=1, width=8, heads=2, feed_forward=8)"
MODELS = [
    Wrong("wide_resnet of depth 18", lambda: wide_resnet(18), ValueError, "6b + 4", "depth=18; the nearest is 16"),
    Wrong("transformer of images", lambda: build_with_inputs(TRANSFORMER, image_shape=(3, 8, 8)), ValueError,
          "normless:transformer(vocabulary=13", "does not take images"),
    Wrong("transformer of nothing", lambda: build_with_inputs("normless:transformer"), ValueError,
          "transformer needs vocabulary", "normless:transformer(vocabulary=…)"),
    *(Wrong(f"transformer, {given}", later(transformer, 10, **given), ValueError, *words)
      for given, *words in (
          ({"layers": 0}, "layers=0 and decoder_layers=0"),
          ({"width": 9, "heads": 3}, "even, a sine and a cosine each", "width=9"),
          ({"heads": 5}, "divides its width into equal heads", "width=512 and heads=5"),
          ({"norm": "before"}, "pre or post, not 'before'"), ({"padding": 10}, "padding=10 and vocabulary=10"))),
    *(Wrong(f"network {text}", later(build_model, text), ValueError, *words)
      for text, *words in (
          ("wide_resnet", "Expected normless:NAME"),
          ("normless:vgg", "normless has no network 'vgg'", "dense, resnet"),
          ("normless:wide_resnet(deep=3)", "does not take deep"),
          ("torchvision:resnet1", "torchvision", "'resnet1'", "Did you mean resnet18?"),
          ("timm:resnet5x", "timm", "'resnet5x'", "Did you mean resnet50?"),
          ("torchvison:resnet18", "no module torchvison", "Did you mean torchvision?"),
          ("missing.py:net", "no file"),
          ("normless:resnet(depth=20)", "18, 34, 50, 101, 152", "depth=20"),
          ("normless:resnet(depth=34, width_per_group=128)", "Only bottleneck networks"),
          ("normless:resnet(stride_on=conv3)", "conv1, conv2, not 'conv3'"),
          ("normless:resnet(depth=34, stride_on=conv1)", "depth=34 with stride_on='conv1'"))),
    *(Wrong(f"classifier {text}", later(text_classifier, text), ValueError, *words)
      for text, *words in (
          ("brt(hidden_size=32)", "transformers has no kind of model 'brt'", "Did you mean bert?"),
          ("bert(hidden_size='inf')", "transformers", "bert", "hidden_size"),
          ("bert(hidden_size=30, num_attention_heads=4)", "transformers cannot build bert", "of sentences"),
          ("no/such/folder", "There is no file", "config.json", "Nothing is downloaded"))),
]  # fmt: skip


def probed(batch: Any = BATCH, *names: str, frozen: bool = False) -> object:
    return nl.probe(wide_resnet(10, 1).requires_grad_(not frozen), batch, [*names] or ["signal"])


def mixing(model: nn.Module, *shape: int) -> object:
    return nl.mixes_examples(model, torch.randn(shape))


PROBES = [
    Wrong("probe, frozen", lambda: probed(BATCH, "gradients", frozen=True), ValueError, "no trainable parameter"),
    Wrong("probe, a name", lambda: probed(BATCH, "signals"), ValueError, "'signals'", "Did you mean signal"),
    Wrong("probe without targets", lambda: probed(X, "gradients"), ValueError, "so targets are needed"),
    Wrong("probe, a loader", lambda: probed(DataLoader(TensorDataset(*BATCH))), ValueError, "got DataLoader",
          "next(iter(loader))"),
    Wrong("probe, an argument", lambda: probed(BATCH, "activations(kinds='norm')"), ValueError,
          "does not take kinds"),
    Wrong("every step of none", lambda: every(0), ValueError, "every 1 or more steps, got 0"),
    Wrong("mixing, one example", lambda: mixing(LINEAR, 1, 2), ValueError, "that has length 1"),
    Wrong("mixing, a number", lambda: mixing(nn.Identity()), ValueError, "no tensor with an axis"),
    Wrong("mixing, a mean", lambda: mixing(Written(lambda m, x: x.mean()), 4, 3), ValueError,
          "No output belongs to an example"),
    Wrong("mixing, chance", lambda: mixing(Written(lambda m, x: x + float(np.random.default_rng().random())), 4, 3),
          ValueError, "Two passes of this Written"),
]  # fmt: skip


def not_taken(batch: Any) -> object:
    """A probe of a batch that the network or the loss does not take, its map known."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    return nl.probe(model, batch, residual_map=nl.residual_map(model, X))


LABELS = torch.tensor([0, 1, 1, 0])
TAKERS: dict[str, Callable[[Any], object]] = {
    "residual_map": lambda model: nl.residual_map(model, X),
    "freeze": nl.freeze,
    "fold": lambda model: nl.fold(model, X),
    "fuse_for_inference": lambda model: nl.fuse_for_inference(model, X),
    "mixes_examples": lambda model: nl.mixes_examples(model, X),
    "watch": nl.watch,
    "diagnose": lambda model: nl.diagnose(model, BATCH),
}
INPUTS = [
    Wrong("recomputation in no segments", lambda: nl.optim.recompute_blocks(resnet_cifar(8), segments=0), ValueError,
          "segments to be 1 or more"),
    Wrong("batch of text", lambda: not_taken(("text", LABELS)), InputsError,
          "Sequential does not take arguments str"),
    Wrong("class 7", lambda: not_taken((X, LABELS + 6)), InputsError, "cross_entropy", "[4, 2], [4]", "IndexError"),
    *(Wrong(f"{name} of a {type(given).__name__}", later(take, given), TypeError,
            "Expected a network, a torch.nn.Module, got")
      for name, take in TAKERS.items() for given in (nn.Linear, None)),
]  # fmt: skip
HEALTH = [
    Wrong(f"health, {words}", later(nl.diagnose_trained, nn.Linear(3, 3), batches), error, words)
    for batches, error, words in (
        ([], InputsError, "got none"), (3, InputsError, "DataLoader"), ([["a", "b"]], InputsError, "of tensors"),
        ([(torch.ones(1),) * 3], ValueError, "batch of two"), ([torch.randn(4, 9)], InputsError, "does not take"))
]  # fmt: skip
ERRORS = [*MAPS, *OPTIM, *SCHEMES, *MODELS, *PROBES, *INPUTS, *HEALTH]
