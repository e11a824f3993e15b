"""Healthy trainings that look like a fault: frozen, zero, shared, lazy, scripted or complex parts."""

import copy
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults import data, measures
from benchmarks.faults.attention import GPT, token_loss
from benchmarks.faults.case import Training, healthy
from benchmarks.faults.optimization import LoRALinear
from benchmarks.faults.sources import own, traincheck


@healthy(own("LoRA on a frozen, pretrained trunk"))
def lora_on_a_frozen_trunk() -> Training:
    """A trunk trained on other digits is frozen; low-rank adapters, one factor zero, and the head are trained."""
    x, y = data.digits(512)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    schooling = Training(
        trunk, (x[256:], y[256:]), F.cross_entropy, torch.optim.Adam(trunk.parameters(), lr=5e-3), lambda: 0.0
    )
    measures.train(schooling, 40)
    model = copy.deepcopy(trunk)
    for index in (1, 3):
        linear = model[index]
        assert isinstance(linear, nn.Linear)
        model[index] = LoRALinear(linear, 4, broken=False)
    model[5] = nn.Linear(64, 10)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    labels = 9 - y[:256]
    return Training(
        model, (x[:256], labels), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x[:256], labels)
    )


class ZeroBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 48)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48)) for _ in range(6))
        for block in self.blocks:
            nn.init.zeros_(block[2].weight)  # type: ignore[index]
            nn.init.zeros_(block[2].bias)  # type: ignore[index]
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@healthy(own("residual branches that start at zero"))
def zero_residual_branches() -> Training:
    """The last layer of every residual branch starts at zero, so that the network starts linear."""
    x, y = data.digits(256)
    model = ZeroBranches()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class TinyViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, stride=2)
        self.cls = nn.Parameter(torch.zeros(1, 1, 32))
        self.pos = nn.Parameter(torch.zeros(1, 17, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])


@healthy(own("class token, positions and head of a vision transformer start at zero"))
def zero_class_token() -> Training:
    """The class token, the positions and the head of a vision transformer start at zero."""
    x, y = data.digits(128)
    model = TinyViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class CarriedState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        fits = self.state is not None and self.state.shape[1] == len(x)
        hidden, state = self.rnn(x, self.state if fits else None)
        self.state = state.detach()
        return self.out(hidden)


@healthy(own("truncated backpropagation: the hidden state is carried along"))
def hidden_state_carried_along() -> Training:
    """The hidden state of the previous piece of the series starts the next one, detached."""
    series = torch.sin(0.3 * torch.arange(16 * 20 + 1) + torch.rand(24, 1) * 6)
    pieces = [(series[:, t : t + 20, None], series[:, t + 1 : t + 21, None]) for t in range(0, 300, 20)]
    model = CarriedState()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    success = measures.r_squared(model, *pieces[0])
    return Training(model, pieces[0], nn.MSELoss(), optimizer, success, lambda step: pieces[step % len(pieces)])


@healthy(own("GPT with tied weights"))
def gpt_with_tied_weights() -> Training:
    """Embedding and output layer of a GPT share one parameter."""
    x, y = data.language(32, 20)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return Training(model, (x, y), token_loss, optimizer, measures.fitted(model, x, y, token_loss, 2.7726))


class LazyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.LazyConv2d(16, 3)
        self.norm = nn.LazyBatchNorm2d()
        self.fc = nn.LazyLinear(10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.max_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1))


@healthy(own("lazy modules, materialized by a first call"))
def lazy_modules() -> Training:
    """The shapes of lazy layers were set by a call with one batch."""
    x, y = data.digits(256)
    model = LazyNet()
    model(x[:2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class FourierLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(1, 16)
        self.weight = nn.Parameter(torch.randn(16, 16, 8, dtype=torch.cfloat) / 16)
        self.local = nn.Linear(16, 16)
        self.out = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        spectrum = torch.fft.rfft(x, dim=1)[:, :8]
        mixed = torch.einsum("nki,iok->nko", spectrum, self.weight)
        x = (torch.fft.irfft(mixed, n=x.shape[1], dim=1) + self.local(x)).relu()
        return self.out(x.mean(1))


@healthy(own("complex weights of a Fourier layer"))
def complex_weights() -> Training:
    """A Fourier layer has complex weights."""
    x, y = data.waves(96, 32)
    model = FourierLayer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class FakeQuantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 48)
        self.second = nn.Linear(48, 3)

    def quantized(self, weight: Tensor) -> Tensor:
        scale = weight.detach().abs().max().item() / 127
        return torch.fake_quantize_per_tensor_affine(weight, scale, 0, -128, 127)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.quantized(self.first.weight), self.first.bias).relu()
        return F.linear(x, self.quantized(self.second.weight), self.second.bias)


@healthy(own("quantization-aware training"))
def fake_quantized_weights() -> Training:
    """Weights are rounded to 8 bits forward, with a straight-through gradient."""
    x, y = data.table("wine")
    x = data.standardized(x)
    model = FakeQuantized()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.block = torch.jit.trace(block, torch.randn(4, 64))
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x.flatten(1)))


@healthy(own("a TorchScript part"))
def traced_part() -> Training:
    """The body of the network was traced by TorchScript."""
    x, y = data.digits(256)
    model = Scripted()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()) for _ in range(3)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = x + checkpoint(stage, x, use_reentrant=False)
        return self.head(F.adaptive_max_pool2d(x, 1).flatten(1))


@healthy(own("gradient checkpointing"))
def gradient_checkpointing() -> Training:
    """Stages are computed again in the backward pass."""
    x, y = data.digits(96)
    model = Checkpointed()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@healthy(traincheck("clean workload time-sequence-prediction: LBFGS with a closure"), steps=15)
def lbfgs_with_closure() -> Training:
    """LBFGS needs a closure, and its rate of 0.8 is not that of SGD."""
    series = torch.sin(0.4 * torch.arange(41) + torch.rand(32, 1) * 6)
    x, y = series[:, :-1, None], series[:, 1:, None]
    model = SeriesLSTM()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=6)
    return Training(model, (x, y), nn.MSELoss(), optimizer, measures.r_squared(model, x, y))


class SeriesLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0])
