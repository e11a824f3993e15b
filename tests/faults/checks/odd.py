"""Healthy trainings of unusual inputs, outputs, losses, parameters, forward passes and objectives."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from tests.faults.catalogue import Training, row_of_kinds
from tests.faults.networks import LoRALinear, mlp
from tests.faults.training import module

CE = F.cross_entropy


def training(build: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    """Add a healthy row of the network, the batch, the loss and the optimizer that a function returns."""

    def make() -> Training:
        model, batch, loss, optimizer = build()
        return Training(model, batch, loss, optimizer, lambda: float("nan"))

    make.__module__ = build.__module__
    row_of_kinds(build.__name__, (), "seen", make)
    return build


def labelled(count: int = 32, width: int = 8, classes: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width)
    return x, x[:, :classes].argmax(1)


def body(width: int = 8, out: int = 4) -> nn.Sequential:
    return mlp(width, 32, 32, out)


def adam(model: nn.Module, rate: float = 3e-3) -> Optimizer:
    return Adam(model.parameters(), rate)


@training
def positive_rates():
    model = module(lambda self, x: self.body(x).squeeze(-1), body=body(out=1))
    x = torch.randn(32, 8)
    return model, (x, x[:, 0].exp().round()), nn.PoissonNLLLoss(), adam(model)


@training
def a_loss_as_output():
    model = module(lambda self, x, y: CE(self.body(x), y), body=body())
    return model, (labelled(), None), lambda output, _: output, adam(model)


@training
def a_dictionary_of_losses():
    def run(self, x, y):
        features = self.body(x)
        return {"classes": CE(features, y), "size": 0.01 * features.square().mean()}

    model = module(run, body=body())
    return model, (labelled(), torch.zeros(1)), lambda losses, _: sum(losses.values()), adam(model)


@training
def graphs_that_are_pooled():
    def run(self, x, edges, of):
        x = self.first(x).relu()
        x = x + torch.zeros_like(x).index_add(0, edges[1], self.second(x)[edges[0]])
        return self.head(torch.zeros(10, 16).index_add(0, of, x))

    model = module(run, first=(8, 16), second=(16, 16), head=(16, 2))
    batch = torch.randn(60, 8), torch.randint(60, (2, 120)), torch.arange(10).repeat_interleave(6)
    return model, (batch, torch.arange(10) % 2), CE, adam(model, 1e-2)


@training
def alignments():
    def loss(outputs, targets):
        return F.ctc_loss(outputs.log_softmax(-1).transpose(0, 1), *targets, blank=0)

    model = module(lambda self, x: self.head(self.rnn(x)[0]), rnn=nn.GRU(4, 32, batch_first=True), head=(32, 6))
    targets = torch.randint(1, 6, (8, 4)), torch.full((8,), 20), torch.full((8,), 4)
    return model, (torch.randn(8, 20, 4), targets), loss, adam(model, 1e-2)


@training
def low_rank_adapters():
    model = body()
    for place in (0, 2, 4):
        model[place] = LoRALinear(model[place], 4, zeros=False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, labelled(), CE, Adam(trained, 1e-2)


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
    return model, (x, x[:, 0] % 3), CE, Adam([model.prompt, *model.head.parameters()], 1e-2)


@training
def a_step_of_a_generator():
    critic, generator = mlp(8, 32, 1, act=lambda: nn.LeakyReLU(0.2)).requires_grad_(False), mlp(4, 32, 8)
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

    model = module(run, body=mlp(8, 32, 1, act=lambda: nn.LeakyReLU(0.2)))
    batch = torch.randn(32, 8) + 1, torch.randn(32, 8)
    return model, (batch, None), lambda output, _: output, Adam(model.parameters(), 1e-3, betas=(0.0, 0.9))


@training
def lazy_layers_after_a_call():
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    x = torch.randn(16, 3, 8, 8)
    model(x)
    return model, (x, torch.arange(16) % 4), CE, adam(model)


@training
def weights_of_inference_mode():
    with torch.inference_mode():
        frozen = nn.Linear(8, 32)
    frozen.requires_grad_(False)
    model = module(lambda self, x: self.head(F.relu(self.frozen(x))), frozen=frozen, head=body(32))
    return model, labelled(), CE, Adam(model.head.parameters(), 1e-2)


@training
def low_precision():
    model = body().to(torch.bfloat16)
    x, y = labelled()
    return model, (x.bfloat16(), y), CE, SGD(model.parameters(), 0.1)


@training
def sparse_gradients():
    model = nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Flatten(), nn.Linear(96, 4))
    batch = torch.randint(50, (16, 6)), torch.arange(16) % 4
    return model, batch, CE, SGD(model.parameters(), 0.1)


@training
def a_compiled_network():
    model = torch.compile(body(), backend="eager")
    return model, labelled(), CE, adam(model)


@training
def a_wrapper():
    model = nn.DataParallel(body())
    return model, labelled(), CE, adam(model)


@training
def weights_from_a_network():
    def run(self, x, task):
        own = self.maker(task)
        parameters = {"weight": own[: 8 * 4].view(4, 8), "bias": own[8 * 4 :]}
        return functional_call(self.layer[0], parameters, (x,))

    # In a tuple, the layer is no part of the network: its own parameters are never read.
    model = module(run, maker=mlp(3, 16, 36, act=nn.Tanh), layer=(nn.Linear(8, 4),))
    x, y = labelled()
    return model, ((x, torch.randn(3)), y), CE, adam(model, 1e-2)


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
    return model, labelled(), CE, adam(model, 1e-2)


@training
def operations_in_place():
    def run(self, x):
        y = self.first(x)
        y.mul_(0.5).add_(1.0)
        y = F.relu(y, inplace=True)
        y = y * 2
        y[:, :4] += 1
        return self.last(y)

    model = module(run, first=(8, 32), last=(32, 4))
    return model, labelled(), CE, adam(model, 1e-2)


@training
def a_copy_as_teacher():
    student = body()
    parts = {"student": student, "teacher": deepcopy(body()).requires_grad_(False)}
    model = module(lambda self, x: (self.student(x), self.teacher(x)), **parts)

    def loss(outputs, y):
        own, taught = outputs
        soft = F.kl_div(own.log_softmax(1), taught.detach().softmax(1), reduction="batchmean")
        return CE(own, y) + 0.1 * soft

    return model, labelled(), loss, Adam(student.parameters(), 1e-2)


@training
def a_variational_autoencoder():
    def run(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(z), mean, log_variance

    def loss(outputs, x):
        made, mean, log_variance = outputs
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.mse_loss(made, x) + 0.01 * divergence

    model = module(run, encoder=body(out=8), decoder=body(4, 8))
    x = torch.randn(32, 2) @ torch.randn(2, 8)
    return model, (x, x), loss, adam(model)


@training
def a_field_of_one_point():
    def run(self, x):
        for layer in self.layers[:-1]:
            x = torch.sin(30 * layer(x)) if layer is self.layers[0] else torch.sin(layer(x))
        return self.layers[-1](x)

    model = module(run, layers=nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 3)]))
    nn.init.uniform_(model.layers[0].weight, -0.5, 0.5)
    x = torch.rand(128, 2) * 2 - 1
    y = torch.stack([(5 * x[:, 0]).sin(), (4 * x[:, 1]).cos(), x.prod(1)], 1)
    return model, (x, y), F.mse_loss, adam(model)


@training
def an_equation_as_loss():
    def run(self, t):
        t = t.requires_grad_()
        u = self.body(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return u, slope, self.body(torch.zeros(1, 1))

    def loss(outputs, _):
        u, slope, start = outputs
        return (slope + u).square().mean() + (start - 1).square().mean()

    model = module(run, body=mlp(1, 32, 32, 1, act=nn.Tanh))
    return model, (torch.linspace(0, 2, 40)[:, None], None), loss, adam(model)


@training
def bags_of_words():
    parts = {"bag": nn.EmbeddingBag(50, 16), "head": nn.Linear(16, 3)}
    model = module(lambda self, words, starts: self.head(self.bag(words, starts)), **parts)
    batch = torch.randint(50, (96,)), torch.arange(0, 96, 4)
    return model, (batch, torch.arange(24) % 3), CE, adam(model, 3e-2)


@training
def several_sizes_of_images():
    def forward(self, images):
        return torch.stack([self.head(self.body(image[None]).mean((2, 3))[0]) for image in images])

    convs = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU())
    model = module(forward, body=convs, head=(32, 3))
    images = [torch.randn(3, 8 + size, 9) + size % 3 for size in range(9)]
    return model, ((images,), torch.arange(9) % 3), CE, adam(model, 1e-2)
