"""Healthy trainings that look like a fault: frozen, zero, shared, lazy, scripted or complex parts."""

import copy
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.faults import data
from tests.faults.catalogue import Training, healthy, looks_odd
from tests.faults.networks import GPT, LoRALinear, mlp, token_loss
from tests.faults.training import adam, adamw, fit, made, module, r_squared, sgd, train


@healthy("own", "LoRA on a frozen, pretrained trunk")
def lora_on_a_frozen_trunk() -> Training:
    """A trunk trained on other digits is frozen; low-rank adapters, one factor zero, and the head are trained."""
    x, y = data.digits(512)
    trunk = mlp(64, 64, 64, 10, flat=True)
    train(made(trunk, x[256:], y[256:], adam(5e-3), F.cross_entropy), 40)
    model = copy.deepcopy(trunk)
    for index in (1, 3):
        model[index] = LoRALinear(model[index], 4, zeros=False)
    model[5] = nn.Linear(64, 10)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return made(model, x[:256], 9 - y[:256], optimizer)


@healthy("own", "residual branches that start at zero")
def zero_residual_branches() -> Training:
    """The last layer of every residual branch starts at zero, so that the network starts linear."""

    def forward(self, x):
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    blocks = lambda: nn.ModuleList(mlp(48, 48, 48) for _ in range(6))  # noqa: E731
    model = module(forward, stem=(64, 48), blocks=blocks, head=(48, 10))
    for block in model.blocks:
        nn.init.zeros_(block[2].weight)
        nn.init.zeros_(block[2].bias)
    return made(model, *data.digits(256), adam(2e-3))


@healthy("own", "class token, positions and head of a vision transformer start at zero")
def zero_class_token() -> Training:
    """The class token, the positions and the head of a vision transformer start at zero."""

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])

    patches = nn.Conv2d(1, 32, 2, stride=2)
    zeros = {"cls": nn.Parameter(torch.zeros(1, 1, 32)), "pos": nn.Parameter(torch.zeros(1, 17, 32))}
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    model = module(forward, patches=patches, **zeros, block=block, norm=nn.LayerNorm(32), head=(32, 10))
    nn.init.zeros_(model.head.weight)
    return made(model, *data.digits(128), adamw(3e-3))


@healthy("own", "truncated backpropagation: the hidden state is carried along")
def hidden_state_carried_along() -> Training:
    """The hidden state of the previous piece of the series starts the next one, detached."""
    series = torch.sin(0.3 * torch.arange(16 * 20 + 1) + torch.rand(24, 1) * 6)
    pieces = [(series[:, t : t + 20, None], series[:, t + 1 : t + 21, None]) for t in range(0, 300, 20)]

    def forward(self, x):
        fits = self.state is not None and self.state.shape[1] == len(x)
        hidden, state = self.rnn(x, self.state if fits else None)
        self.state = state.detach()
        return self.out(hidden)

    model = module(forward, rnn=nn.GRU(1, 32, batch_first=True), out=(32, 1), state=None)
    return made(model, *pieces[0], adam(1e-2), success=r_squared(model, *pieces[0]), stream=pieces)


looks_odd(
    "gpt_with_tied_weights",
    "Embedding and output layer of a GPT share one parameter.",
    ("own", "GPT with tied weights"),
    lambda: fit(data.language(32, 20), GPT(), adamw(5e-3), token_loss, guess=2.7726),
)


@healthy("own", "lazy modules, materialized by a first call")
def lazy_modules() -> Training:
    """The shapes of lazy layers were set by a call with one batch."""
    x, y = data.digits(256)

    def forward(self, x):
        return self.fc(F.max_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1))

    model = module(forward, conv=nn.LazyConv2d(16, 3), norm=nn.LazyBatchNorm2d(), fc=nn.LazyLinear(10))
    model(x[:2])
    return made(model, x, y, sgd(0.05))


@healthy("own", "complex weights of a Fourier layer")
def complex_weights() -> Training:
    """A Fourier layer has complex weights."""
    x, y = data.waves(96, 32)

    def forward(self, x):
        x = self.lift(x)
        spectrum = torch.fft.rfft(x, dim=1)[:, :8]
        mixed = torch.einsum("nki,iok->nko", spectrum, self.weight)
        x = (torch.fft.irfft(mixed, n=x.shape[1], dim=1) + self.local(x)).relu()
        return self.out(x.mean(1))

    lift, weight = nn.Linear(1, 16), nn.Parameter(torch.randn(16, 16, 8, dtype=torch.cfloat) / 16)
    return made(module(forward, lift=lift, weight=weight, local=(16, 16), out=(16, 2)), x, y, adam(1e-2))


@healthy("own", "quantization-aware training")
def fake_quantized_weights() -> Training:
    """Weights are rounded to 8 bits forward, with a straight-through gradient."""

    def quantized(weight):
        scale = weight.detach().abs().max().item() / 127
        return torch.fake_quantize_per_tensor_affine(weight, scale, 0, -128, 127)

    def forward(self, x):
        x = F.linear(x, quantized(self.first.weight), self.first.bias).relu()
        return F.linear(x, quantized(self.second.weight), self.second.bias)

    return made(module(forward, first=(13, 48), second=(48, 3)), *data.table("wine"), adam(5e-3))


@healthy("own", "a TorchScript part")
def traced_part() -> Training:
    """The body of the network was traced by TorchScript."""
    block = nn.Sequential(*mlp(64, 48, 48), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(block, torch.randn(4, 64))
    model = module(lambda self, x: self.head(self.block(x.flatten(1))), block=traced, head=(48, 10))
    return made(model, *data.digits(256), adam(5e-3))


@healthy("own", "gradient checkpointing")
def gradient_checkpointing() -> Training:
    """Stages are computed again in the backward pass."""

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = x + checkpoint(stage, x, use_reentrant=False)
        return self.head(F.adaptive_max_pool2d(x, 1).flatten(1))

    stem = nn.Conv2d(1, 16, 3, padding=1)
    stages = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()) for _ in range(3)]
    model = module(forward, stem=stem, stages=nn.ModuleList(stages), head=(16, 10))
    return made(model, *data.digits(96), adam(5e-3))


@healthy("TrainCheck", "clean workload time-sequence-prediction: LBFGS with a closure", steps=15)
def lbfgs_with_closure() -> Training:
    """LBFGS needs a closure, and its rate of 0.8 is not that of SGD."""
    series = torch.sin(0.4 * torch.arange(41) + torch.rand(32, 1) * 6)
    lstm = nn.LSTM(1, 24, batch_first=True)
    model = module(lambda self, x: self.out(self.lstm(x)[0]), lstm=lstm, out=(24, 1))
    return made(model, series[:, :-1, None], series[:, 1:, None], adam(0.8, torch.optim.LBFGS, max_iter=6))
