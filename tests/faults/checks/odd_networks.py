"""Healthy trainings of unusual parameters, forward passes and optimizers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, AdamW

from tests.faults.checks.odd_forms import adam, body, calls, labelled, training


class LowRank(nn.Module):
    """A frozen layer with a trained product of two matrices, one of them zero, beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2 * x @ self.down.T @ self.up.T


@training
def low_rank_adapters() -> tuple:
    model = body()
    for place in (0, 2, 4):
        model[place] = LowRank(model[place])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, labelled(), F.cross_entropy, Adam(trained, 1e-2)


@training
def adapters_of_half_precision_weights() -> tuple:
    model = nn.Sequential(LowRank(nn.Linear(8, 32)), nn.ReLU(), nn.Linear(32, 4))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer" not in name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, labelled(), F.cross_entropy, AdamW(trained, 1e-2)


@training
def a_prompt_before_a_frozen_network():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = calls(
        lambda self, x: self.head(
            self.body(torch.cat([self.prompt.expand(len(x), -1, -1), self.words(x) + self.positions], 1))[:, 0]
        ),
        positions=nn.Parameter(torch.randn(6, 16), requires_grad=False),
        words=nn.Embedding(20, 16).requires_grad_(False),
        body=layer.requires_grad_(False),
        prompt=nn.Parameter(0.02 * torch.randn(1, 4, 16)),
        head=nn.Linear(16, 3),
    )
    x = torch.randint(20, (24, 6))
    return model, (x, x[:, 0] % 3), F.cross_entropy, Adam([model.prompt, *model.head.parameters()], 1e-2)


@training
def a_step_of_a_generator():
    critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).requires_grad_(False)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
    model = calls(lambda self, z: self.critic(self.generator(z)), generator=generator, critic=critic)
    # Real ones, smoothed at random.
    batch = torch.randn(32, 4), 1 - 0.1 * torch.rand(32, 1)
    return model, batch, F.binary_cross_entropy_with_logits, Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))


@training
def a_critic_with_a_gradient_penalty():
    def run(self, real, fake):
        between = ((real + fake) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(self.body(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return self.body(fake).mean() - self.body(real).mean() + 10 * penalty

    model = calls(run, body=nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
    batch = torch.randn(32, 8) + 1, torch.randn(32, 8)
    return model, (batch, None), lambda output, _: output, Adam(model.parameters(), 1e-3, betas=(0.0, 0.9))


@training
def lazy_layers_after_a_call() -> tuple:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    x = torch.randn(16, 3, 8, 8)
    model(x)
    return model, (x, torch.arange(16) % 4), F.cross_entropy, adam(model)


@training
def a_rounded_forward_pass():
    def run(self, x):
        for layer in self.layers[:-1]:
            scale = layer.weight.detach().abs().max() / 127
            rounded = layer.weight + ((layer.weight / scale).round() * scale - layer.weight).detach()
            x = F.linear(x, rounded, layer.bias).relu()
        return self.layers[-1](x)

    model = calls(run, layers=nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)]))
    return model, labelled(), F.cross_entropy, adam(model)


@training
def weights_of_inference_mode():
    with torch.inference_mode():
        frozen = nn.Linear(8, 32)
    model = calls(
        lambda self, x: self.head(F.relu(self.frozen(x))), frozen=frozen.requires_grad_(False), head=body(32)
    )
    return model, labelled(), F.cross_entropy, Adam(model.head.parameters(), 1e-2)


@training
def low_precision() -> tuple:
    model = body().to(torch.bfloat16)
    x, y = labelled()
    return model, (x.bfloat16(), y), F.cross_entropy, SGD(model.parameters(), 0.1)


@training
def autocast_in_the_forward_pass():
    def run(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(x)

    model = calls(run, body=body())
    return model, labelled(), lambda out, y: F.cross_entropy(out.float(), y), adam(model)


@training
def sparse_features() -> tuple:
    model = calls(
        lambda self, x: self.head(F.relu(torch.sparse.mm(x, self.weight) + self.bias)),
        weight=nn.Parameter(0.3 * torch.randn(40, 16)),
        bias=nn.Parameter(torch.zeros(16)),
        head=nn.Linear(16, 3),
    )
    x = torch.randn(24, 40) * (torch.rand(24, 40) < 0.2)
    return model, (x.to_sparse(), torch.arange(24) % 3), F.cross_entropy, adam(model, 1e-2)


@training
def sparse_gradients() -> tuple:
    model = nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Flatten(), nn.Linear(96, 4))
    batch = torch.randint(50, (16, 6)), torch.arange(16) % 4
    return model, batch, F.cross_entropy, SGD(model.parameters(), 0.1)


@training
def a_block_that_is_called_twice() -> tuple:
    model = calls(
        lambda self, x: self.head(self.block(self.block(self.first(x)).relu()).relu()),
        first=nn.Linear(8, 32),
        block=nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)),
        head=nn.Linear(32, 4),
    )
    return model, labelled(), F.cross_entropy, adam(model)


@training
def a_compiled_network() -> tuple:
    model = torch.compile(body(), backend="eager")
    return model, labelled(), F.cross_entropy, adam(model)


@training
def normalized_weights() -> tuple:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 32)),
        nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(32, 32)),
        nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(32, 32)),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)


@training
def a_wrapper() -> tuple:
    model = nn.DataParallel(body())
    return model, labelled(), F.cross_entropy, adam(model)


@training
def weights_from_a_network():
    def run(self, x, task):
        own = self.maker(task)
        parameters = {"weight": own[: 8 * 4].view(4, 8), "bias": own[8 * 4 :]}
        return functional_call(self.layer[0], parameters, (x,))

    # In a tuple, the layer is no part of the network: its own parameters are never read.
    model = calls(run, maker=nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 36)), layer=(nn.Linear(8, 4),))
    x, y = labelled()
    return model, ((x, torch.randn(3)), y), F.cross_entropy, adam(model, 1e-2)


class Sign(torch.autograd.Function):
    """A sign with the gradient of the identity inside of [-1, 1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


@training
def an_own_function() -> tuple:
    model = calls(
        lambda self, x: self.last(Sign.apply(self.norm(self.first(x)))),
        first=nn.Linear(8, 64),
        norm=nn.BatchNorm1d(64),
        last=nn.Linear(64, 4),
    )
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)


@training
def operations_in_place():
    def run(self, x):
        y = self.first(x)
        y.mul_(0.5).add_(1.0)
        y = F.relu(y, inplace=True)
        y = y * 2
        y[:, :4] += 1
        return self.last(y)

    model = calls(run, first=nn.Linear(8, 32), last=nn.Linear(32, 4))
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)
