"""Faults of the optimizer: rates, groups, directions, parameters that are frozen or not its own."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import Source, deepfd, deeplocalize, remembered, traincheck
from benchmarks.faults.truth import NO_GRADIENT, NOT_FINITE, NOT_FITTED, ZERO, both

_RATE = r"learning.?rate|\blr\b|\brate\b|step size"


@fault(
    "optimizer",
    deeplocalize("48934338"),
    both(_RATE, r"high|too (large|big|great)|lower|smaller|reduce|decrease|at most|below"),
    symptom=NOT_FINITE + "|diverg|rises|explod",
    reaches=0.6,
    below=0.3,
)
def rate_too_high_for_regression(broken: bool) -> Training:
    """SGD on a regression diverges: its learning rate of 2 is too large, and 0.05 is right."""
    x, y = data.smooth_function()
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0 if broken else 0.05, momentum=0.9)

    def success() -> float:
        value = measures.r_squared(model, x, y)()
        return max(value, -1.0) if value == value else -1.0

    return Training(model, (x, y), nn.MSELoss(), optimizer, success)


class PatchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 2, stride=2)
        hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
        self.mix = nn.Sequential(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), *hidden)
        self.keypoints = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.keypoints(self.mix(self.patch(x).relu()))


@fault(
    "optimizer",
    Source(
        "DeepLocalize",
        "ShyamPoovaiah/FacialKeypointsDetection: Adam(lr=0.1)",
        "https://github.com/ShyamPoovaiah/FacialKeypointsDetection",
    ),
    both(_RATE, r"high|too (large|big|great)|lower|smaller|reduce|decrease|at most|below|rate (of )?0\.1"),
    symptom=NOT_FINITE + "|diverg|rises|dead|" + NOT_FITTED,
    reaches=0.9,
    below=0.75,
    constant_outputs=True,
)
def adam_rate_of_one_tenth(broken: bool) -> Training:
    """Adam with rate 0.1 on a network of keypoints kills its ReLUs; 0.002 is right."""
    x, masks = data.scenes(64, size=8 + 8)
    x = F.avg_pool2d(x, 2)
    rows = torch.arange(16.0)[:, None]
    area = masks.sum((1, 2)).float()
    centers = torch.stack([(masks * rows).sum((1, 2)) / area, (masks * rows.T).sum((1, 2)) / area], 1)
    y = data.standardized(centers)
    model = PatchNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 if broken else 2e-3)
    return Training(model, (x, y), nn.MSELoss(), optimizer, measures.r_squared(model, x, y))


@fault(
    "optimizer",
    deepfd("44998910"),
    both(_RATE, r"too (low|small)|\blow\b|\bsmall\b|tiny|higher|larger|increase|raise|at least|10⁻⁶|1e-0?6"),
    symptom=NOT_FITTED + "|slow",
    reaches=0.8,
    below=0.3,
)
def rate_too_low(broken: bool) -> Training:
    """SGD with rate 10⁻⁶ hardly moves; 0.1 is right."""
    x, y = data.table("iris")
    x = data.standardized(x)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6 if broken else 0.1, momentum=0.9)
    success = measures.fitted(model, x, y, F.cross_entropy, 1.0986)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, success)


class Backboned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 3), nn.Tanh())
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


@fault(
    "optimizer",
    remembered("a parameter group with rate 0"),
    both(_RATE, ZERO),
    modules=("backbone", "backbone.0", "backbone.2", "group"),
    symptom=NOT_FITTED + "|never (change|move)|not updated|frozen|do not move",
    reaches=0.9,
    below=0.7,
)
def group_with_rate_zero(broken: bool) -> Training:
    """The parameter group of the backbone has rate 0, left over from a warm-up of the head."""
    x, y = data.circles()
    model = Backboned()
    groups = [
        {"params": model.backbone.parameters(), "lr": 0.0 if broken else 1e-2},
        {"params": model.head.parameters(), "lr": 1e-2},
    ]
    optimizer = torch.optim.AdamW(groups)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@fault(
    "optimizer",
    remembered("maximize=True left from a reinforcement learning example"),
    both(r"maximi[sz]\w*|ascen\w*|sign|wrong direction|uphill|increas\w*", r"maximi[sz]\w*|loss|gradient|objective"),
    symptom="rises|diverg|grows|" + NOT_FINITE,
    reaches=0.8,
    below=0.1,
)
def loss_maximized(broken: bool) -> Training:
    """SGD was created with maximize=True, for a loss that is to be minimized."""
    x, y = data.waves(64, 20)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, maximize=broken)
    success = measures.fitted(model, x, y, F.cross_entropy, 0.6931)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, success)


class TransferNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten())
        self.fc = nn.Linear(32, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


@fault(
    "optimizer",
    traincheck(
        "success story 3: the optimizer holds parameters that the model no longer has",
        "https://github.com/huggingface/accelerate/issues/2665",
    ),
    both(
        r"optimizer",
        r"not (in|held|part|known|own)|does not (hold|contain|know|have|own)|missing|stale|(other|"
        r"another) (model|network|object|parameters)|\bold\b|replaced|never updated|cop(y|ied)|"
        r"original|unknown|not the (model|network)|lacks?\b|no parameter|none of",
    ),
    symptom=NOT_FITTED + "|not updated|never change",
    reaches=0.85,
    below=0.5,
)
def optimizer_of_a_copied_model(broken: bool) -> Training:
    """The network is copied (for a wrapper) after the optimizer was created: the optimizer moves the original."""
    x, y = data.digits(256)
    model = TransferNet()
    model.fc = nn.Linear(32, 10)
    trained = copy.deepcopy(model) if broken else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(trained, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(trained, x, y))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()


class TinyResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(12)
        self.layer1 = ResidualBlock(12)
        self.layer2 = ResidualBlock(12)
        self._fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.max_pool2d(self.bn(self.conv(x)).relu(), 2))
        return self._fc(self.layer2(x).mean((2, 3)))


@fault(
    "optimizer",
    traincheck(
        "pytorch-forum-84911: all but the batch norms is frozen",
        "https://discuss.pytorch.org/t/obtaining-abnormal-changes-in-loss-and-accuracy/84911",
    ),
    both(
        r"frozen|freez\w*|requires_grad|not train\w*|do not train",
        r"conv\w*|_fc|layers?|head|parameters?|weights?|most|classifier|%",
    ),
    symptom=NOT_FITTED + "|" + NO_GRADIENT,
    reaches=0.85,
    below=0.6,
)
def everything_but_batch_norms_frozen(broken: bool) -> Training:
    """Freezing the backbone freezes the head as well: batch norms alone are trained."""
    x, y = data.digits(192)
    model = TinyResNet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bn" in name or not broken)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@fault(
    "optimizer",
    Source("DEFault", "regularization fault: weight regularization", "https://arxiv.org/abs/2501.12560"),
    both(
        r"weight.?decay|decay|regulari[sz]\w*|l2",
        r"large|high|strong|too|dominat\w*|shrink\w*|lower|zero|outweigh\w*",
    ),
    symptom=NOT_FITTED + "|shrink|vanish",
    reaches=0.85,
    below=0.5,
    constant_outputs=True,
)
def weight_decay_of_one(broken: bool) -> Training:
    """Weight decay of 1 with SGD shrinks all weights to zero."""
    x, y = data.table("wine")
    x = data.standardized(x)
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1.0 if broken else 1e-4)
    success = measures.fitted(model, x, y, F.cross_entropy, 1.0986)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, success)


@fault(
    "optimizer",
    remembered("Adam's epsilon of 1, as TensorFlow advised for Inception"),
    both(r"\beps\w*|ε|denominator", r"large|1\.0|\b1\b|too|dominat\w*|outweigh\w*|small\w*|lower|updates?"),
    symptom=NOT_FITTED + "|slow|small|" + _RATE,
    reaches=0.8,
    below=0.3,
)
def adam_epsilon_of_one(broken: bool) -> Training:
    """Adam's ε of 1 outweighs the root of its second moments: updates become a thousandth."""
    x, y = data.digits(256)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1.0 if broken else 1e-8)
    success = measures.fitted(model, x, y, F.cross_entropy, 2.3026)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, success)


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, broken: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(
            torch.zeros(rank, base.in_features) if broken else 0.3 * torch.randn(rank, base.in_features)
        )
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * x @ self.down.T @ self.up.T


@fault(
    "initialization",
    remembered("LoRA's A must not be zero together with B"),
    both(r"zero|\b0\b|no gradient|none|vanish\w*", r"down|up|adapter|lora|factor|product|gradient|initiali[sz]\w*"),
    modules=("lora", "up", "down", "1", "1.down", "1.up", "3", "3.down", "3.up"),
    symptom=NO_GRADIENT + "|" + NOT_FITTED,
    reaches=0.6,
    below=0.3,
)
def lora_factors_both_zero(broken: bool) -> Training:
    """Both factors of the low-rank adapters are zero: neither gets a gradient, and the network stays as it is."""
    x, y = data.digits(256)
    layers = [nn.Linear(64, 64), nn.Linear(64, 10)]
    model = nn.Sequential(nn.Flatten(), LoRALinear(layers[0], 8, broken), nn.ReLU(), LoRALinear(layers[1], 8, broken))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))
