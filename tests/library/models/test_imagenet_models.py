"""The ImageNet networks, held against torchvision's and against the SkipInit paper's reference code."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from normless import convert
from normless.models import resnet, resnet_v2
from normless.models._spec import build_model

# torchvision's name of each network, and the arguments of ours.
TORCHVISION: dict[str, dict[str, int]] = {
    "resnet18": {"depth": 18},
    "resnet50": {"depth": 50},
    "resnext50_32x4d": {"depth": 50, "groups": 32, "width_per_group": 4},
    "wide_resnet50_2": {"depth": 50, "width_per_group": 128},
}


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def disturbed(model: nn.Module) -> nn.Module:
    """The model with noise on everything that starts at one value: norms, biases, multipliers."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(0.2 * torch.rand_like(tensor))
    return model


@pytest.mark.parametrize("name", TORCHVISION)
def test_names_and_shapes_are_those_of_torchvision(name: str) -> None:
    with torch.device("meta"):
        ours, theirs = resnet(**TORCHVISION[name]), torchvision.models.get_model(name)
    assert {key: value.shape for key, value in ours.state_dict().items()} == {
        key: value.shape for key, value in theirs.state_dict().items()
    }
    assert parameter_count(ours) == parameter_count(theirs)


@pytest.mark.parametrize("name", ["resnext50_32x4d", "resnet50"])
def test_outputs_statistics_and_gradients_are_those_of_torchvision(name: str) -> None:
    """Of ResNet-50 as V1 of He et al. (2016a): conv3_1, conv4_1 and conv5_1 have the stride in their first 1×1."""
    theirs = disturbed(torchvision.models.get_model(name)).double()
    ours = resnet(**TORCHVISION[name]).double()
    if name == "resnet50":
        ours = build_model("normless:resnet(depth=50, stride_on=conv1)").double()
        for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    ours.load_state_dict(theirs.state_dict())
    images, labels = torch.randn(2, 3, 40, 33, dtype=torch.float64), torch.tensor([4, 0])
    for training in (False, True):
        expected, found = theirs.train(training)(images), ours.train(training)(images)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    for outputs in (expected, found):
        F.cross_entropy(outputs, labels).backward()
    wanted = {name: one.grad for name, one in theirs.named_parameters()}
    gradients = {name: one.grad for name, one in ours.named_parameters()}
    torch.testing.assert_close(gradients, wanted, rtol=1e-8, atol=1e-9)


# Appendix G: (output channels, bottleneck channels, stride) of every block, as printed.
APPENDIX_G = [
    *[(256, 64, 1)] * 2, (256, 64, 2),
    *[(512, 128, 1)] * 3, (512, 128, 2),
    *[(1024, 256, 1)] * 5, (1024, 256, 2),
    *[(2048, 512, 1)] * 3,
]  # fmt: skip


def fixed_padding(x: Tensor, size: int) -> Tensor:
    before = (size - 1) // 2
    after = size - 1 - before
    return F.pad(x, (before, after, before, after))


def appendix_g(model: nn.Module, x: Tensor) -> Tensor:
    """The reference code line by line, in evaluation; norms come before every ReLU where the model has them."""

    def convolved(path: str, h: Tensor, stride: int = 1) -> Tensor:
        layer = model.get_submodule(path)
        multiplier = getattr(layer, "multiplier", None)
        y = F.conv2d(fixed_padding(h, layer.weight.shape[-1]), layer.weight, layer.bias, stride)
        return y if multiplier is None else multiplier * y

    x = fixed_padding(convolved("stem", x, 2), 3)
    x = F.max_pool2d(x, 3, stride=2)
    for index, (outputs, _, stride) in enumerate(APPENDIX_G):
        block = f"blocks.{index}"
        preact = F.relu(model.get_submodule(f"{block}.norm1")(x))
        if outputs == x.shape[1]:
            shortcut = x if stride == 1 else F.max_pool2d(x, 1, stride=stride)
        else:
            shortcut = convolved(f"{block}.shortcut", preact, stride)
        residual = F.relu(model.get_submodule(f"{block}.norm2")(convolved(f"{block}.conv1", preact)))
        residual = F.relu(model.get_submodule(f"{block}.norm3")(convolved(f"{block}.conv2", residual, stride)))
        x = shortcut + convolved(f"{block}.conv3", residual)
    features = F.relu(model.get_submodule("norm")(x)).mean((2, 3))
    classifier = model.get_submodule("classifier")
    return F.linear(features, classifier.weight, classifier.bias)


@pytest.mark.parametrize(("scheme", "size"), [("batch_norm", (47, 54)), ("zeroinit(dropout=0.2)", (64, 64))])
def test_resnet_v2_is_appendix_g(scheme: str, size: tuple[int, int]) -> None:
    model = disturbed(convert(resnet_v2(50, classes=10), scheme)).double().eval()
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = appendix_g(model, images)
    torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())
