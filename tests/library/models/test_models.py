"""Reference networks: sizes, initial weights, texts that name them, example inputs."""

from __future__ import annotations

from math import prod, sqrt
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from normless import convert, residual_map
from normless.models import dense, resnet_cifar, wide_resnet
from normless.models.spec import build_model, build_with_inputs


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (56, 853_018), (110, 1_727_962)])
def test_resnet_cifar_has_the_parameters_of_the_original(depth: int, parameters: int) -> None:
    """0.27M, 0.85M and 1.7M in He et al. (2016), table 6; exactly: two more per norm and channel."""
    model = resnet_cifar(depth)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_wide_resnet_16_4_has_2_7_million_parameters() -> None:
    """Zagoruyko & Komodakis (2016), table 2: WRN-16-4 has 2.7M."""
    total = sum(parameter.numel() for parameter in wide_resnet(16, 4).parameters())
    assert round(total / 1e6, 1) == 2.7


@pytest.mark.parametrize(("relu", "gain"), [(True, 2), (False, 1)])
def test_dense_layers_have_he_or_lecun_variance_by_fan_in(relu: bool, gain: int) -> None:
    model = dense(1, 400, in_features=100, relu=relu)
    assert model.stem.linear1.weight.var().item() == pytest.approx(gain / 100, rel=0.05)
    assert model.blocks[0].branch.linear1.weight.var().item() == pytest.approx(gain / 400, rel=0.05)


def test_wrong_depths_name_the_nearest_right_one() -> None:
    with pytest.raises(ValueError, match=r"depth 6b \+ 4.*got depth=18; the nearest is 16"):
        wide_resnet(18)
    with pytest.raises(ValueError, match=r"depth 6b \+ 2.*got depth=2; the nearest is 8"):
        resnet_cifar(2)
    with pytest.raises(ValueError, match="at least one block"):
        dense(0)


def test_specs_build_fitted_networks() -> None:
    model = build_model("normless:wide_resnet(depth=10, width=1)", classes=7, image_shape=(1, 8, 8))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 7)
    model = build_model("normless:dense(depth=1, width=5, classes=3)", classes=7, image_shape=(1, 8, 8))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert build_model("torchvision:resnet18", classes=4).fc.out_features == 4
    assert build_model("timm:resnet10t(num_classes=6)", image_shape=(1, 8, 8)).num_classes == 6


def test_a_file_of_the_users_own(tmp_path: object) -> None:
    path = f"{tmp_path}/mine.py"
    with open(path, "w") as file:  # noqa: PTH123
        file.write(
            "from torch import nn\ndef net(width=3):\n    return nn.Linear(width, 1)\ndef no():\n    return 3\n"
        )
    assert build_model(f"{path}:net(width=5)").in_features == 5
    with pytest.raises(ValueError, match=r"returned an object of type int, expected a torch\.nn\.Module"):
        build_model(f"{path}:no")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wide_resnet", "Expected normless:NAME"),
        ("normless:vgg", r"normless has no network 'vgg'\. It has dense, resnet"),
        ("normless:wide_resnet(deep=3)", "does not take deep"),
        ("normless:wide_resnet(16)", "every argument needs its name"),
        ("normless:dnse", r"normless has no network 'dnse'\. Did you mean dense\? It has dense, resnet"),
        ("torchvision:nothing", r"torchvision has no model 'nothing'\. torchvision\.models\.list_models"),
        ("torchvision:resnet1", r"torchvision has no model 'resnet1'\. Did you mean resnet18\?"),
        ("timm:nothing", r"timm has no model 'nothing'\. timm\.list_models\('\*PART\*'\)"),
        ("timm:resnet5x", r"timm has no model 'resnet5x'\. Did you mean resnet50\?"),
        ("hub:resnet", r"There is no module hub with a model 'resnet': No module named 'hub'\.$"),
        ("torchvison:resnet18", r"There is no module torchvison .*\. Did you mean torchvision\?"),
        ("normles:dense", r"There is no module normles .*\. Did you mean normless\?"),
        ("missing.py:net", "There is no file"),
    ],
)
def test_specs_that_name_nothing(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(spec)


@pytest.mark.parametrize(("layers", "blocks"), [(1000, 498), pytest.param(10_000, 4998, marks=pytest.mark.slow)])
def test_a_network_of_thousands_of_layers_takes_a_step(layers: int, blocks: int) -> None:
    model = convert(wide_resnet(layers, 1, in_channels=1), "skipinit")
    assert residual_map(model).depth == blocks
    late = model.blocks[4 * blocks // 5].conv2
    before = late.multiplier.clone()
    loss = nn.functional.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([0, 1]))
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.isfinite(loss)
    assert not torch.equal(late.multiplier, before)


SMALL = {
    "wide_resnet": "wide_resnet(depth=16, width=4, classes=100{})",
    "resnet_cifar": "resnet_cifar(depth=20, classes=100{})",
    "resnet": "resnet(depth=50, channels=32, classes=100{})",
    "grouped": "resnet(depth=50, channels=32, groups=8, width_per_group=16, classes=100{})",
    "resnet_v2": "resnet_v2(depth=50, classes=100{})",
}
FAN_IN_BY_DEFAULT = ("wide_resnet", "resnet_v2")
VARIANCE = {
    "he": lambda fan_in, fan_out: 2 / fan_out,
    "he_fan_in": lambda fan_in, fan_out: 2 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "lecun": lambda fan_in, fan_out: 1 / fan_in,
}


def built(name: str, argument: str = "") -> nn.Module:
    torch.manual_seed(0)
    return build_model("normless:" + SMALL[name].format(argument))


def layers(network: nn.Module) -> dict[str, nn.Module]:
    return {name: one for name, one in network.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)}


def classifier_of(network: nn.Module) -> nn.Linear:
    (linear,) = [one for one in network.modules() if isinstance(one, nn.Linear)]
    return linear


def assert_normal(weight: torch.Tensor, variance: float, where: str) -> None:
    """Mean 0 and the second and fourth moments of a normal distribution, within five standard errors."""
    count = weight.numel()
    scaled = weight.detach().double() / sqrt(variance)
    assert abs(scaled.mean().item()) <= 5 / sqrt(count), where
    assert abs(scaled.square().mean().item() - 1) <= 5 * sqrt(2 / count), where
    assert abs(scaled.pow(4).mean().item() - 3) <= 5 * sqrt(96 / count) + 20 / count, where


def fans(weight: torch.Tensor) -> tuple[int, int]:
    area = prod(weight.shape[2:])
    return weight.shape[1] * area, weight.shape[0] * area


@pytest.mark.parametrize("kind", VARIANCE)
@pytest.mark.parametrize("name", SMALL)
def test_every_weight_has_the_variance_of_the_kind_that_the_text_names(name: str, kind: str) -> None:
    network = built(name, f", initialization={kind}")
    for path, layer in layers(network).items():
        assert_normal(layer.weight, VARIANCE[kind](*fans(layer.weight)), path)
    assert not classifier_of(network).bias.any()


@pytest.mark.parametrize("name", FAN_IN_BY_DEFAULT)
def test_the_networks_of_de_and_smith_start_from_fan_in_the_classifier_too(name: str) -> None:
    default, stated = built(name), built(name, ", initialization=he_fan_in")
    assert all(torch.equal(one, two) for one, two in zip(default.parameters(), stated.parameters(), strict=True))


@pytest.mark.parametrize("name", sorted({*SMALL} - {*FAN_IN_BY_DEFAULT}))
def test_the_other_networks_start_from_fan_out_and_torchs_classifier(name: str) -> None:
    """torchvision's ResNet and Fixup's: fan-out for convolutions; torch's linear layer is uniform in ±1/√fan-in."""
    network = built(name)
    for path, layer in layers(network).items():
        if isinstance(layer, nn.Conv2d):
            assert_normal(layer.weight, 2 / (layer.out_channels * prod(layer.kernel_size)), path)
    classifier = classifier_of(network)
    bound = 1 / sqrt(classifier.in_features)
    assert classifier.weight.abs().max().item() <= bound
    assert classifier.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)
    assert classifier.bias.abs().max().item() <= bound
    assert classifier.bias.any()


def test_the_stream_of_wide_resnet_doubles_with_every_block_by_fan_in_alone() -> None:
    """Each of six blocks adds a branch of its input's second moment: 2⁶ over all, less what borders of zeros take.

    The mean over draws; weights of fan-out, whose variance is half as large where the width doubles, fall behind.
    """
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32)
    growth = {}
    for kind in ("he_fan_in", None):
        drawn = []
        for _ in range(12):
            network = convert(wide_resnet(16, 4, initialization=kind), "none(keep_scale=False)")
            with torch.no_grad():
                stem = network.stem(images)
                drawn.append((network.blocks(stem).square().mean() / stem.square().mean()).item())
        growth[kind] = sum(drawn) / len(drawn)
    assert 0.5 * 2**6 < growth["he_fan_in"] < 1.1 * 2**6
    assert growth[None] < 0.2 * growth["he_fan_in"]


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("normless:wide_resnet(depth=10)", (2, 3, 32, 32)),
        ("normless:wide_resnet(depth=10, in_channels=1)", (2, 1, 32, 32)),
        ("normless:dense(depth=1, width=4)", (2, 3, 32, 32)),
        ("normless:dense(depth=1, width=4, in_features=30)", (2, 30)),
        ("torchvision:squeezenet1_1", (2, 3, 224, 224)),
        ("timm:resnet10t", (2, 3, 176, 176)),
        ("timm:test_resnet(in_chans=1)", (2, 1, 160, 160)),
        ("timm:test_vit(img_size=96)", (2, 3, 96, 96)),
        ("timm:test_vit(img_size=(64, 96))", (2, 3, 64, 96)),
    ],
)
def test_inputs_have_the_shape_that_the_network_is_made_for(spec: str, shape: tuple[int, ...]) -> None:
    model, inputs = build_with_inputs(spec)
    assert isinstance(inputs, Tensor)
    assert tuple(inputs.shape) == shape
    assert inputs.std().item() == pytest.approx(1, rel=0.2)
    with torch.no_grad():
        assert model.eval()(inputs).shape[0] == 2


def test_inputs_are_always_the_same_and_draw_nothing_from_the_global_generator() -> None:
    torch.manual_seed(1)
    build_model("normless:dense(depth=1, width=4)", image_shape=(3, 32, 32))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    _, first = build_with_inputs("normless:dense(depth=1, width=4)")
    assert torch.equal(torch.get_rng_state(), state)
    _, second = build_with_inputs("normless:dense(depth=1, width=4)")
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert torch.equal(first, second)


def test_a_given_shape_wins(tmp_path: Path) -> None:
    model, inputs = build_with_inputs("normless:wide_resnet(depth=10)", image_shape=(1, 8, 9))
    assert isinstance(inputs, Tensor)
    assert inputs.shape == (2, 1, 8, 9)
    assert model(inputs).shape == (2, 10)
    file = tmp_path / "mine.py"
    file.write_text("import torch\ndef net():\n    return torch.nn.Flatten(), torch.ones(2, 7)\n")
    assert build_with_inputs(f"{file}:net", image_shape=(1, 2, 3))[1].shape == (2, 1, 2, 3)  # type: ignore[union-attr]
    assert build_with_inputs(f"{file}:net")[1].shape == (2, 7)  # type: ignore[union-attr]


def test_a_file_may_return_its_inputs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def alone():\n    return nn.Linear(4, 1)\n"
        "def several():\n    return nn.Bilinear(4, 3, 1), (torch.ones(2, 4), torch.ones(2, 3))\n"
        "def named():\n    return nn.Linear(4, 1), {'input': torch.ones(2, 4)}\n"
        "def listed():\n    return nn.Linear(4, 1), [torch.ones(2, 4)]\n"
        "def three():\n    return nn.Linear(4, 1), 1, 2\n"
    )
    assert build_with_inputs(f"{file}:alone")[1].shape == (2, 3, 32, 32)  # type: ignore[union-attr]
    model, inputs = build_with_inputs(f"{file}:several")
    assert isinstance(inputs, tuple)
    assert model(*inputs).shape == (2, 1)
    model, inputs = build_with_inputs(f"{file}:named")
    assert isinstance(inputs, dict)
    assert model(**inputs).shape == (2, 1)
    assert isinstance(build_model(f"{file}:named"), torch.nn.Linear)
    with pytest.raises(ValueError, match="returned inputs of type list, expected a tensor, a tuple of positional"):
        build_with_inputs(f"{file}:listed")
    with pytest.raises(
        ValueError, match=r"returned an object of type tuple, expected a torch\.nn\.Module, or one and its inputs"
    ):
        build_model(f"{file}:three")
