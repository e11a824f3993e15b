"""What a saved network is besides its weights, remarks and code included, comes back, or saving it is refused."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.cli import main
from normless.models import resnet_cifar
from normless.models._spec import build_model

MINE = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.groups, self.layer = nn.GroupNorm(2, 4), nn.LayerNorm(8)
        self.slope, self.relu, self.drop = nn.LeakyReLU(0.1), nn.ReLU(), nn.Dropout(0.0)
        self.shrink, self.activation = 0.5, F.silu
        self.register_buffer("mask", torch.ones(8), persistent=False)

    def forward(self, x):
        h = self.slope(self.norm(self.conv(x)))
        h = self.relu(self.layer(self.groups(h) * self.mask))
        return x + self.shrink * self.drop(self.activation(h))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.first, self.second = Block(), Block()
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.second(self.first(self.norm(self.stem(x)))).mean((2, 3)))

def net():
    return Net()
"""
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path / 'mine.py'}:net"


def trained(net: nn.Module) -> nn.Module:
    """The network after a pass in training and with parameters off their first values."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for one in net.parameters():
            one += 0.3 * torch.randn(one.shape, generator=generator, dtype=one.dtype)
        net.train()(IMAGES.to(next(net.parameters()).dtype))
    return net


def outputs(net: nn.Module, training: bool) -> Tensor:
    """Outputs on the same random numbers, the network as before."""
    torch.manual_seed(5)
    state = {name: one.clone() for name, one in net.state_dict().items()}
    with torch.no_grad():
        made: Tensor = net.train(training)(IMAGES.to(next(net.parameters()).dtype))
    net.load_state_dict(state)
    return made


def settings(net: nn.Module) -> dict[str, Any]:
    """Modes and other plain attributes of modules, types and flags of parameters."""
    parameters = {name: (one.dtype, one.requires_grad) for name, one in net.named_parameters()}
    return parameters | {
        f"{path}.{name}": value
        for path, module in net.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, (bool, int, float, tuple)) and not name.startswith("normless_")
    }


CHANGES: dict[str, Callable[[Any], object]] = {
    "epsilon": lambda net: setattr(net.first.norm, "eps", 0.5),
    "constant": lambda net: setattr(net.second, "shrink", 3.0),
    "dilation and padding": lambda net: [setattr(net.stem, "dilation", (2, 2)), setattr(net.stem, "padding", (2, 2))],
    "buffer": lambda net: net.first.mask.copy_(torch.arange(8.0)),
    "statistics of the batch": lambda net: [
        *(setattr(net.norm, name, None) for name in ("running_mean", "running_var")),
        setattr(net.norm, "track_running_stats", False),
    ],
    "tied": lambda net: setattr(net.second.conv, "weight", net.first.conv.weight),
    "no dropout": lambda net: setattr(net.second, "drop", nn.Identity()),
    "half": lambda net: net.bfloat16(),
    "norms in evaluation": lambda net: net.first.eval(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_after_the_conversion_comes_back(change: str, spec: str, tmp_path: Path) -> None:
    net = trained(nl.convert(build_model(spec), "batch_norm", IMAGES))
    CHANGES[change](net)
    nl.save(net, tmp_path / "saved", spec)
    loaded = nl.load(tmp_path / "saved")
    assert settings(net).items() <= settings(loaded).items()
    for training in (False, True):
        torch.testing.assert_close(outputs(loaded, training), outputs(net, training), rtol=0, atol=0)


def double(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return 2 * output


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "module": (lambda net: setattr(net.first, "relu", nn.GELU()), "first.relu is a GELU"),
    "function": (lambda net: setattr(net.second, "activation", F.gelu), "activation of second, a Block, is gelu"),
    "hook": (lambda net: net.first.relu.register_forward_hook(double), "differ in evaluation mode, .* a hook"),
    "further module": (lambda net: net.second.add_module("extra", nn.ReLU()), "second.extra is a ReLU"),
    "further parameter": (
        lambda net: net.second.register_parameter("extra", nn.Parameter(torch.ones(1))),
        "the first second.extra",
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_a_recipe_cannot_hold_is_refused_and_nothing_is_written(change: str, spec: str, tmp_path: Path) -> None:
    net = nl.convert(build_model(spec), "batch_norm", IMAGES)
    apply, said = REFUSED[change]
    apply(net)
    with pytest.raises(nl.errors.RecipeError, match=said):
        nl.save(net, tmp_path / "saved", spec)
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("normless:resnet_cifar(depth=8)", "normless:resnet_cifar(depth=14)"),
        ("timm:test_resnet", "timm:test_resnet(num_classes=7)"),
    ],
)
def test_the_text_of_another_network_is_refused(spec: str, wrong: str, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 32, 32)
    net = nl.convert(build_model(spec), "skipinit", x)
    with pytest.raises(nl.errors.RecipeError, match=r"so nl\.load would return another network"):
        nl.save(net, tmp_path / "saved", wrong)
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("model", "scheme", "function", "named"),
    [
        ("normless:wide_resnet(depth=10, width=1)", "batch_norm_sqrt2", "fold", True),
        ("mine", "batch_norm_sqrt2", "freeze", False),
    ],
)
def test_folded_and_frozen_networks_are_saved(
    model: str, scheme: str | None, function: str, named: bool, spec: str, tmp_path: Path
) -> None:
    text = spec if model == "mine" else model
    net = trained(build_model(text) if scheme is None else nl.convert(build_model(text), scheme, IMAGES)).eval()
    done = nl.freeze(net) if function == "freeze" else nl.fold(net, IMAGES)[0]
    nl.save(done, tmp_path / "saved", text if named else None, example_inputs=IMAGES)
    loaded = nl.load(tmp_path / "saved", None if named else build_model(text))
    assert [type(one).__name__ for one in loaded.modules()] == [type(one).__name__ for one in done.modules()]
    torch.testing.assert_close(loaded(IMAGES), done(IMAGES), rtol=0, atol=0)
    torch.testing.assert_close(loaded(IMAGES), net(IMAGES), rtol=1e-3, atol=1e-4)


SCHEME = """
from normless.edits import HeadDropout, RemoveNorms

def mine():
    return (RemoveNorms(), HeadDropout(0.1))
"""


def test_a_recipe_holds_no_absolute_path_and_moves_with_its_files(spec: str, tmp_path: Path) -> None:
    home = tmp_path / "project"
    home.mkdir()
    (home / "mine.py").write_text(MINE)
    (home / "schemes.py").write_text(SCHEME)
    model, scheme = f"{home}/mine.py:net", f"{home}/schemes.py:mine"
    nl.save(nl.convert(build_model(model), scheme, IMAGES), home / "saved", model)
    text = (home / "saved" / "recipe.json").read_text()
    assert str(tmp_path) not in text
    assert (json.loads(text)["model"], json.loads(text)["scheme"]) == ("../mine.py:net", "../schemes.py:mine")
    nl.save(
        nl.convert(build_model(model), "none + " + scheme.replace(":mine", ":HeadDropout()"), IMAGES), home, model
    )
    assert json.loads((home / "recipe.json").read_text())["model"] == "./mine.py:net"
    shutil.move(home, tmp_path / "elsewhere")
    nl.load(tmp_path / "elsewhere" / "saved", trust_code=True)
    nl.load(tmp_path / "elsewhere", trust_code=True)


def test_convert_asks_before_it_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["convert", "normless:resnet_cifar(depth=8)", "--scheme", "skipinit", "--out", str(tmp_path / "net")]
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "mine.txt").write_text("kept")
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "net").iterdir()] == ["mine.txt"]
    assert main([*words, "--overwrite"]) == 0
    assert len(list((tmp_path / "net").iterdir())) == 3


CODE = (
    "from helper import width\nfrom normless.models import dense\nfrom normless.schemes import skipinit\n"
    "def net():\n    return dense(depth=2, width=width, in_features=4)\n"
    "def own():\n    return skipinit()\n"
)
PLAIN_TEXT = "normless:dense(depth=2, width=8, in_features=4)"
VECTORS = torch.ones(2, 4)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "helper.py").write_text("width = 8\n")
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(("model", "scheme"), [("mine.py:net", "skipinit"), (PLAIN_TEXT, "mine.py:own")])
@pytest.mark.parametrize("changes", ["mine.py", "helper.py"])
def test_changed_code_is_told(model: str, scheme: str, changes: str, mine: Path) -> None:
    nl.save(nl.convert(build_model(model), scheme, VECTORS), "net", model)
    assert "/" not in json.loads(Path("net/recipe.json").read_text())["code"].popitem()[0].removeprefix("../")
    with warnings.catch_warnings(action="error"):
        nl.load("net")
    mine.with_name(changes).write_text(mine.with_name(changes).read_text() + "# changed\n")
    with pytest.warns(nl.errors.ChangedCodeWarning, match=r"mine\.py changed since the network in net was saved"):
        nl.load("net")


def test_an_edited_recipe_is_loaded_when_asked_or_sealed(mine: Path) -> None:
    net = nl.convert(build_model(PLAIN_TEXT), "skipinit", VECTORS)
    nl.save(net, "net", PLAIN_TEXT)
    recipe = Path("net/recipe.json")
    text = recipe.read_text()
    for place, digit in [(place, digit) for place, digit in enumerate(text) if digit.isdigit()]:
        recipe.write_text(text[:place] + str((int(digit) + 1) % 10) + text[place + 1 :])
        with pytest.raises(nl.errors.RecipeError):
            nl.load("net")
    recipe.write_text(json.dumps(json.loads(text) | {"training": {"": False}}))
    with pytest.raises(nl.errors.RecipeError, match=r"edited or damaged.* edited=True.* convert --seal"):
        nl.load("net")
    assert not nl.load("net", edited=True).training
    assert main(["convert", "--seal", "net"]) == 0
    assert not nl.load("net").training
    Path("net/model.safetensors").write_bytes(b"")
    assert main(["convert", "--seal", "net"]) == 2


@pytest.mark.parametrize("name", ["_modules", "_parameters", "forward", "training", "__call__"])
def test_a_recipe_replaces_no_part_of_a_class(name: str, mine: Path) -> None:
    nl.save(nl.convert(build_model(PLAIN_TEXT), "skipinit", VECTORS), "net", PLAIN_TEXT)
    recipe = Path("net/recipe.json")
    values = json.loads(recipe.read_text())
    values["state"]["modules"][0]["settings"][name] = {"items": []}
    recipe.write_text(json.dumps(values))
    with pytest.raises(nl.errors.RecipeError, match=f"has a setting {name} of a .*, which is part of its class"):
        nl.load("net", edited=True)


def first_module(**changes: Any) -> dict[str, Any]:
    return {"class": "Linear", "settings": {}, "absent": [], "paths": []} | changes


@pytest.mark.parametrize(
    "edits",
    [
        {"training": {"": "yes"}},
        {"code": {"mine.py": 5}},
        {"state": {"modules": [first_module(paths=5)]}},
        {"state": {"modules": [first_module(settings=5)]}},
        {"state": {"modules": [first_module(paths=["0"], settings={"in_features": float("nan")})]}},
        {"state": {"ties": [[5]]}},
    ],
    ids=str,
)
def test_a_recipe_of_wrong_types_is_told(edits: dict[str, Any], mine: Path) -> None:
    nl.save(nl.convert(build_model(PLAIN_TEXT), "skipinit", VECTORS), "net", PLAIN_TEXT)
    recipe = Path("net/recipe.json")
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | edits))
    with pytest.raises(nl.errors.RecipeError, match="is not"):
        nl.load("net", edited=True)
    assert main(["convert", "--seal", "net"]) == 2


@pytest.mark.parametrize("value", [{"float": "xx"}, {"items": 5}, {"set": 5}], ids=str)
def test_a_setting_that_cannot_be_read_is_told(value: Any, mine: Path) -> None:
    nl.save(nl.convert(build_model(PLAIN_TEXT), "skipinit", VECTORS), "net", PLAIN_TEXT)
    recipe = Path("net/recipe.json")
    values = json.loads(recipe.read_text())
    kind = next(kind for kind in values["state"]["modules"] if "in_features" in kind["settings"])
    kind["settings"]["in_features"] = value
    recipe.write_text(json.dumps(values))
    assert main(["convert", "--seal", "net"]) == 0
    with pytest.raises(nl.errors.RecipeError, match=r"in_features of .*, a .*a recipe cannot hold it"):
        nl.load("net")


DOUBLING = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        x.mul_(2)
        return x + self.layer(self.norm(x))

def net():
    return Block()
"""


def test_a_network_that_writes_into_its_input_is_saved(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DOUBLING)
    text = f"{tmp_path / 'mine.py'}:net"
    net = nl.convert(build_model(text), "skipinit", VECTORS.clone())
    nl.save(net, tmp_path / "net", text, example_inputs=VECTORS.clone())
    loaded = nl.load(tmp_path / "net")
    torch.testing.assert_close(loaded(VECTORS.clone()), net(VECTORS.clone()), rtol=0, atol=0)


SMALL_IMAGES = torch.randn(2, 3, 8, 8)


def test_a_converted_network_says_what_was_done(tmp_path: Path) -> None:
    model = resnet_cifar(8)
    net = nl.convert(model, "fixup", SMALL_IMAGES)
    said: Any = net.normless
    assert said.plan == nl.plan(model, "fixup", SMALL_IMAGES)
    for text in ("fixup", f"{said.date:%Y-%m-%d}", str(said.plan[0])):
        assert text in str(said)
    assert len(repr(said)) < 100
    assert deepcopy(net).normless == pickle.loads(pickle.dumps(net)).normless == said
    assert not hasattr(model, "normless")
    nl.save(net, tmp_path)
    loaded: Any = nl.load(tmp_path, model)
    assert loaded.normless.plan == said.plan
