"""Every network of the sweep that has batch norms, folded: the same outputs in eval mode, no batch statistics left.

The oracle is the network itself in eval mode, with its running statistics, γ and β drawn at random.
"""

from __future__ import annotations

import pytest
import torch
import torchvision
from test_zoo import CLASSIFIERS, OPTIONS, VIDEO
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves
from zoo_networks import BY_NAME, ZOO

import normless as nl

TIMM = (
    "halonet_h1", "test_byobnet", "repvgg_a0", "mobileone_s0", "convmixer_768_32", "cpubone_nano",
    "cs3darknet_focus_s", "cspnext_tiny", "densenet121", "dla46x_c", "dla102", "dpn48b", "efficientformer_l1",
    "efficientformerv2_s0", "efficientnet_b0", "efficientvim_m1", "efficientvit_b0", "efficientvit_m0",
    "fasternet_t0", "fastvit_t8", "ghostnet_050", "hardcorenas_b", "hgnetv2_b0", "hrnet_w18_small", "iformer_t",
    "inception_next_atto", "inception_resnet_v2", "inception_v3", "inception_v4", "lcnetv2_small", "levit_128s",
    "lowformer_b0", "test_coatnet", "mobilenetv3_small_050", "mobilevit_xxs", "nasnetalarge", "nextvit_small",
    "pnasnet5large", "regnetx_002", "repghostnet_050", "repvit_m1", "res2next50", "resnest14d", "test_resnet",
    "resnetv2_18", "rexnet_100", "selecsls42", "legacy_seresnet18", "shvit_s1", "skresnet18", "starnet_s050",
    "swiftformer_xs", "tiny_vit_5m_224", "tresnet_m", "visformer_tiny", "volo_d1_224", "ese_vovnet19b_slim_dw",
    "legacy_xception", "xception41p", "xcit_nano_12_p8_224",
)  # fmt: skip
TORCHVISION = (
    "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2",
    "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "vgg11_bn",
    "wide_resnet50_2", "r3d_18",
)  # fmt: skip
QUICK = {"timm test_byobnet", "torchvision resnet18"}
NAMES = [*(f"timm {name}" for name in TIMM), *(f"torchvision {name}" for name in TORCHVISION)]
# Norms that no layer can take, by the definition of the network.
AFFINE = {
    "timm test_byobnet": 0,
    # Every block's first norm, behind a sum or pooling and before a ReLU, and the last one.
    "timm resnetv2_18": 8 + 1,
    # The identity branches: one in every unit at stride 1 between equal widths.
    "timm repvgg_a0": 1 + 3 + 13 + 0,
    # Each dense layer's first norm reads a concatenation, as does each transition's and the last.
    "timm densenet121": 6 + 12 + 24 + 16 + 3 + 1,
    "torchvision densenet121": 6 + 12 + 24 + 16 + 3 + 1,
    "torchvision googlenet": 0,
    "torchvision inception_v3": 0,
    "torchvision resnet18": 0,
    "torchvision resnext50_32x4d": 0,
    "torchvision wide_resnet50_2": 0,
    "torchvision mobilenet_v2": 0,
    "torchvision efficientnet_b0": 0,
    "torchvision vgg11_bn": 0,
    "torchvision r3d_18": 0,
}
# Where the logits of an attention grow large, no two orders of rounding agree on the outputs: wider statistics.
VARIANCES = {"halonet_h1": (1.0, 4.0)}
# Convolutional networks that take minutes at the size they are made for; timm's and torchvision's of one name alike.
SIZES = {
    "nasnetalarge": 107, "pnasnet5large": 107, "inception_v4": 107, "inception_resnet_v2": 107,
    "convmixer_768_32": 112, "densenet121": 112,
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The network with its batch norms at random, and two images of the size it is made for."""
    library, _, name = name.partition(" ")
    if library == "timm":
        model = BY_NAME[name].build()
        size = SIZES.get(name, BY_NAME[name].images(model).shape[-1])
        images = torch.randn(2, 3, size, size)
    else:
        model = torchvision.models.get_model(name, **OPTIONS.get(name, {}))
        size = 299 if name == "inception_v3" else SIZES.get(name, 224)
        images = torch.randn(2, 3, 8, 56, 56) if name in VIDEO else torch.randn(2, 3, size, size)
    return randomized(model, VARIANCES.get(name, (0.5, 1.5))), images


@torch.no_grad()
def randomized(model: nn.Module, variances: tuple[float, float]) -> nn.Module:
    """Draw γ, β and the running statistics of every batch norm, all different."""
    for norm in model.modules():
        if isinstance(norm, _BatchNorm):
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(*variances)
            if norm.affine:
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_(0, 0.3)
    return model


def relative_error(found: Tensor, expected: Tensor) -> float:
    assert expected.isfinite().all()
    assert expected.std() > 0
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.zoo) for name in NAMES]
)
def test_folded(name: str) -> None:
    model, images = build(name)
    model = model.double()
    norms = [path for path, norm in model.named_modules() if isinstance(norm, _BatchNorm)]
    folded, report = nl.fold(model, images.double())
    assert sorted(norm.path for norm in report.norms if norm.outcome != "kept") == sorted(norms)
    assert report.counts["affine"] == AFFINE.get(name, report.counts["affine"]), str(report)
    assert not any(isinstance(module, _BatchNorm) for module in folded.modules())

    # Rounded to float32, the weights folded in float64 are those folded in float32, since fold computes in float64.
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model, folded, images = model.to(dtype).eval(), folded.to(dtype).eval(), images.to(dtype)
        with torch.no_grad():
            assert relative_error(folded(images), model(images)) <= limit

    first, second = (trained_output(folded, torch.stack([images[0], other])) for other in (images[1], images[0] + 1))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4 * float(first.abs().max()))


@torch.no_grad()
def trained_output(model: nn.Module, images: Tensor) -> Tensor:
    """What the first example of a batch gives in train mode, at one state of the dropout."""
    model.train()
    torch.manual_seed(1)
    output = next(iter(tree_leaves(model(images))))
    assert isinstance(output, Tensor)
    return output[0]


@pytest.mark.zoo
def test_the_tables_name_every_network_with_batch_norms() -> None:
    with torch.device("meta"):
        from_timm = {network.name: network.build() for network in ZOO}
    names = CLASSIFIERS | VIDEO
    from_torchvision = {name: torchvision.models.get_model(name, **OPTIONS.get(name, {})) for name in names}
    for models, table in ((from_timm, TIMM), (from_torchvision, TORCHVISION)):
        assert {name for name, model in models.items() if has_batch_norms(model)} == set(table)


def has_batch_norms(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())
