"""Healthy trainings of unusual parameters, forward passes and optimizers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.faults.checks.odd_forms import adam, body, labelled, training
from tests.faults.training import module


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
def low_rank_adapters():
    model = body()
    for place in (0, 2, 4):
        model[place] = LowRank(model[place])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, labelled(), F.cross_entropy, Adam(trained, 1e-2)


@training
def a_prompt_before_a_frozen_network():
    def forward(self, x):
        prompt = self.prompt.expand(len(x), -1, -1)
        return self.head(self.body(torch.cat([prompt, self.words(x) + self.positions], 1))[:, 0])

    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    positions, words = nn.Parameter(torch.randn(6, 16), requires_grad=False), nn.Embedding(20, 16)
    frozen = {"positions": positions, "words": words.requires_grad_(False), "body": layer.requires_grad_(False)}
    model = module(forward, **frozen, prompt=nn.Parameter(0.02 * torch.randn(1, 4, 16)), head=(16, 3))
    x = torch.randint(20, (24, 6))
    return model, (x, x[:, 0] % 3), F.cross_entropy, Adam([model.prompt, *model.head.parameters()], 1e-2)


@training
def a_step_of_a_generator():
    critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).requires_grad_(False)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
    model = module(lambda self, z: self.critic(self.generator(z)), generator=generator, critic=critic)
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

    model = module(run, body=nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
    batch = torch.randn(32, 8) + 1, torch.randn(32, 8)
    return model, (batch, None), lambda output, _: output, Adam(model.parameters(), 1e-3, betas=(0.0, 0.9))


@training
def lazy_layers_after_a_call():
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    x = torch.randn(16, 3, 8, 8)
    model(x)
    return model, (x, torch.arange(16) % 4), F.cross_entropy, adam(model)


@training
def weights_of_inference_mode():
    with torch.inference_mode():
        frozen = nn.Linear(8, 32)
    frozen.requires_grad_(False)
    model = module(lambda self, x: self.head(F.relu(self.frozen(x))), frozen=frozen, head=body(32))
    return model, labelled(), F.cross_entropy, Adam(model.head.parameters(), 1e-2)


@training
def low_precision():
    model = body().to(torch.bfloat16)
    x, y = labelled()
    return model, (x.bfloat16(), y), F.cross_entropy, SGD(model.parameters(), 0.1)


@training
def sparse_gradients():
    model = nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Flatten(), nn.Linear(96, 4))
    batch = torch.randint(50, (16, 6)), torch.arange(16) % 4
    return model, batch, F.cross_entropy, SGD(model.parameters(), 0.1)


@training
def a_compiled_network():
    model = torch.compile(body(), backend="eager")
    return model, labelled(), F.cross_entropy, adam(model)


@training
def a_wrapper():
    model = nn.DataParallel(body())
    return model, labelled(), F.cross_entropy, adam(model)


@training
def weights_from_a_network():
    def run(self, x, task):
        own = self.maker(task)
        parameters = {"weight": own[: 8 * 4].view(4, 8), "bias": own[8 * 4 :]}
        return functional_call(self.layer[0], parameters, (x,))

    # In a tuple, the layer is no part of the network: its own parameters are never read.
    model = module(run, maker=nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 36)), layer=(nn.Linear(8, 4),))
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
def an_own_function():
    forward = lambda self, x: self.last(Sign.apply(self.norm(self.first(x))))  # noqa: E731
    model = module(forward, first=(8, 64), norm=nn.BatchNorm1d(64), last=(64, 4))
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

    model = module(run, first=nn.Linear(8, 32), last=nn.Linear(32, 4))
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)
