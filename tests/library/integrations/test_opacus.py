"""Per-example gradients of converted networks under Opacus, against one backward pass per example."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from gallery import ROWS
from matrix.case import perturbed
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'normless[private]'")

from opacus import GradSampleModule, PrivacyEngine
from opacus.validators import ModuleValidator
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models.resnet import BasicBlock, ResNet

from normless.integrations._opacus import prepare

pytestmark = [
    # Opacus hooks layers that read the images, which need no gradients.
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]


def loss_of(outputs: Tensor) -> Tensor:
    """A loss per example, shape (B,), whose gradient differs between examples and positions."""
    return (outputs * torch.arange(1.0, 1 + outputs[0].numel()).view_as(outputs[0])).flatten(1).sum(1).sin()


def assert_per_example(model: nn.Module, *inputs: Tensor) -> None:
    """Opacus' per-example gradients of every trainable parameter are those of one backward pass per example."""
    model = model.double()
    hooked = GradSampleModule(deepcopy(model))
    hooked.zero_grad()
    loss_of(hooked(*inputs)).mean().backward()
    found = {name.removeprefix("_module."): parameter for name, parameter in hooked.named_parameters()}
    for index in range(len(inputs[0])):
        model.zero_grad()
        loss_of(model(*(one[index : index + 1] for one in inputs))).sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                gradients = found[name].grad_sample
                assert gradients.shape == (len(inputs[0]), *parameter.shape)
                torch.testing.assert_close(gradients[index], parameter.grad, msg=f"example {index}, {name}")


def torchvision_resnet() -> nn.Module:
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5)


@pytest.mark.parametrize(
    ("network", "scheme"),
    [
        *(("CifarResNet", scheme) for scheme in ("fixup", "layer_scale", "nf_resnet")),
    ],
)
def test_converted_networks(network: str, scheme: str) -> None:
    model, (images,) = ROWS[network].network(), ROWS[network].example()[0]
    if scheme == "layer_scale":
        model = ModuleValidator.fix(model)
    net = prepare(nl.convert(model, scheme, images), images)
    assert_per_example(perturbed(net, 0.05), images.double())


@pytest.mark.parametrize("norms", ["removed", "replaced"])
def test_prepare_keeps_function_and_keys_and_takes_what_torch_refuses(norms: str) -> None:
    images = torch.randn(2, 3, 32, 32)
    model = torchvision_resnet()
    net = nl.convert(model, "skipinit(alpha=1)", images) if norms == "removed" else ModuleValidator.fix(model)
    with pytest.raises(RuntimeError, match="modified inplace"):
        GradSampleModule(deepcopy(net))(images).sum().backward()
    before = repr(net)
    prepared = prepare(net, images)
    assert repr(net) == before
    assert type(net.layer1[0]) is BasicBlock
    assert list(prepared.state_dict()) == list(net.state_dict())
    assert torch.equal(prepared(images), net(images))
    GradSampleModule(prepared)(images).sum().backward()


def test_a_private_step_without_noise_adds_clipped_gradients() -> None:
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    model = perturbed(nl.convert(torchvision_resnet(), "skipinit", images), 0.05)
    bound, rate = 0.5, 0.1
    expected = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for index in range(4):
        model.zero_grad()
        F.cross_entropy(model(images[index : index + 1]), labels[index : index + 1]).backward()
        norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
        assert norm > bound
        for name, parameter in model.named_parameters():
            expected[name] -= rate / 4 * parameter.grad * (bound / norm)
    net = prepare(model, images)
    net, optimizer, _ = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=rate),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=4),
        noise_multiplier=0.0,
        max_grad_norm=bound,
        poisson_sampling=False,
    )
    F.cross_entropy(net(images), labels).backward()
    optimizer.step()
    for name, parameter in net._module.named_parameters():
        step = parameter.detach() - model.get_parameter(name).detach()
        torch.testing.assert_close(step, expected[name], rtol=1e-3, atol=1e-6, msg=name)
