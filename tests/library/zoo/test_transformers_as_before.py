"""Converted networks of transformers in use: with caches, masks, losses, all outputs.

The oracle of every value is the original network with its norms replaced by hand by the identity: with RemoveNorms
and sums that are modules of their own (ScaleSums(1.0)), the conversion computes the same by rewritten code.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers as hf
from gallery import ROWS
from matrix.case import perturbed
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import normless as nl
from normless.edits import RemoveNorms, ScaleSums

# Warnings of the libraries are their own.
pytestmark = pytest.mark.filterwarnings("ignore")

BARE = nl.Scheme("bare", (RemoveNorms(), ScaleSums(1.0)))
PADDING = torch.tensor([[1] * 7, [1] * 4 + [0] * 3] * 2)


QUICK = ("hf BERT", "hf GPT-2", "hf ResNet")
CAUSAL = ("hf GPT-2", "hf LLaMA")
OF_TOKENS = ("hf BERT", "hf DistilBERT", *CAUSAL, "hf T5")
ALL = (*OF_TOKENS, "hf ViT", "hf Swin", "hf ConvNeXt", "hf ResNet")


def some(names: Iterable[str]) -> list[Any]:
    """The names, all but the quick ones marked."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.zoo) for name in names]


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """A network in evaluation whose biases and norms are no longer at 0 and 1, and its inputs."""
    model: Any = ROWS[name].network()
    if name == "hf T5":
        model.config.decoder_start_token_id = 0
    return perturbed(model, 0.05).eval(), ROWS[name].example()[1]


def without_norms(model: nn.Module) -> Any:
    """The network with its norms replaced by hand, and its code as it is."""
    bare = deepcopy(model)
    for path, module in list(bare.named_modules()):
        if "Norm" in type(module).__name__:
            bare.set_submodule(path, nn.Identity())
    return bare


def assert_same(outputs: Any, expected: Any) -> None:
    """The same class, the same fields, the same tensors in them."""
    assert type(outputs) is type(expected)
    if isinstance(expected, hf.utils.ModelOutput):
        assert list(outputs) == list(expected)
    leaves, wanted = ([one for one in tree_leaves(value) if isinstance(one, Tensor)] for value in (outputs, expected))
    assert len(leaves) == len(wanted) > 0
    for one, other in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", some(ALL))
def test_every_output_has_its_class_fields_and_values(name: str) -> None:
    model, inputs = built(name)
    net, bare = nl.convert(model, BARE, **inputs), without_norms(model)
    assert any("residual_sum" in path for path, _ in net.named_modules())
    for asked in ({}, {"output_hidden_states": True}):
        assert_same(net(**inputs, **asked), bare(**inputs, **asked))
        as_tuples = net(**inputs, **asked, return_dict=False)
        assert type(as_tuples) is tuple
        assert_same(as_tuples, bare(**inputs, **asked, return_dict=False))


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("name", some(OF_TOKENS))
def test_padding_and_losses_with_and_without_a_mask_at_the_conversion(name: str, with_mask: bool) -> None:
    model, inputs = built(name)
    mask = {"attention_mask": PADDING}
    net, bare = nl.convert(model, BARE, **inputs, **(mask if with_mask else {})), without_norms(model)
    plain = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    classes = name in ("hf BERT", "hf DistilBERT")
    labels = {
        "labels": torch.tensor([0, 1, 0, 1]) if classes else inputs["input_ids"].masked_fill(PADDING == 0, -100)
    }
    for given in (inputs, inputs | mask, plain | mask | labels):
        assert_same(net(**given), bare(**given))
    masked = net(**plain, **mask, **labels).loss
    torch.testing.assert_close(masked, bare(**plain, **mask, **labels).loss)
    masked.backward()
    assert all(torch.isfinite(one.grad).all() for one in net.parameters() if one.grad is not None)


@pytest.mark.parametrize("name", some(CAUSAL))
def test_a_cache_continues_a_sentence(name: str) -> None:
    model, inputs = built(name)
    net: Any = nl.convert(model, BARE, **inputs)
    bare, ids = without_norms(model), inputs["input_ids"]
    begun, expected = (one(input_ids=ids[:, :4], use_cache=True) for one in (net, bare))
    assert type(begun) is type(expected)
    assert type(begun.past_key_values) is type(expected.past_key_values)
    rest = net(input_ids=ids[:, 4:], past_key_values=begun.past_key_values).logits
    torch.testing.assert_close(rest, net(input_ids=ids, use_cache=False).logits[:, 4:], atol=1e-5, rtol=1e-4)
    sampled = [one.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0) for one in (net, bare)]
    assert torch.equal(*sampled)
