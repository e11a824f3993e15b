"""Healthy trainings of unusual forms: outputs, losses, parameters and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

Training = tuple[nn.Module, Any, Callable[..., Tensor], Optimizer]
TRAININGS: dict[str, Callable[[], Training]] = {}


def training(build: Callable[[], Training]) -> Callable[[], Training]:
    """Register a training under the name of its function."""
    TRAININGS[build.__name__] = build
    return build


def labelled(count: int = 32, width: int = 8, classes: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width)
    return x, x[:, :classes].argmax(1)


def body(width: int = 8, hidden: int = 32, out: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out)
    )


class Calls(nn.Module):
    """A module that computes a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def adam(model: nn.Module, rate: float = 3e-3) -> Optimizer:
    return Adam(model.parameters(), rate)


@training
def numbers_of_one_axis() -> Training:
    model = Calls(lambda self, x: self.body(x).squeeze(-1), body=body(out=1))
    x = torch.randn(32, 8)
    return model, (x, x[:, 0] * x[:, 1]), F.mse_loss, adam(model)


@training
def positive_rates() -> Training:
    model = Calls(lambda self, x: self.body(x).squeeze(-1), body=body(out=1))
    x = torch.randn(32, 8)
    return model, (x, x[:, 0].exp().round()), nn.PoissonNLLLoss(), adam(model)


@training
def binary_logits() -> Training:
    model = Calls(lambda self, x: self.body(x)[:, 0], body=body(out=1))
    x = torch.randn(32, 8)
    return model, (x, (x[:, 0] > 0).float()), F.binary_cross_entropy_with_logits, adam(model)


@training
def a_loss_as_output() -> Training:
    model = Calls(lambda self, x, y: F.cross_entropy(self.body(x), y), body=body())
    return model, (labelled(), None), lambda output, _: output, adam(model)


@training
def a_dictionary_of_losses() -> Training:
    def run(self: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        return {"classes": F.cross_entropy(features, y), "size": 0.01 * features.square().mean()}

    model = Calls(run, body=body())
    return model, (labelled(), torch.zeros(1)), lambda losses, _: sum(losses.values()), adam(model)


@training
def two_heads() -> Training:
    def run(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.first(features), self.second(features).squeeze(-1)

    model = Calls(
        run, body=nn.Sequential(nn.Linear(8, 32), nn.ReLU()), first=nn.Linear(32, 4), second=nn.Linear(32, 1)
    )
    x, y = labelled()
    return (
        model,
        (x, (y, x.sum(1))),
        lambda out, y: F.cross_entropy(out[0], y[0]) + F.mse_loss(out[1], y[1]),
        adam(model, 1e-2),
    )


@training
def an_object() -> Training:
    model = Calls(lambda self, x: SimpleNamespace(logits=self.body(x), hidden=x), body=body())
    return model, labelled(), lambda out, y: F.cross_entropy(out.logits, y), adam(model)


@training
def the_whole_batch() -> Training:
    model = Calls(lambda self, x: self.body(x), body=body(out=8))

    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return F.mse_loss(outputs, batch[0].roll(1, 1).tanh())

    x, y = labelled()
    return model, (x, y), loss, adam(model)


@training
def pairs_in_a_contrastive_loss() -> Training:
    model = Calls(lambda self, a, b: (self.body(a), self.body(b)), body=body(out=16))
    a = torch.randn(16, 8)

    def loss(outputs: Any, _: Any) -> Tensor:
        first, second = (F.normalize(part, dim=1) for part in outputs)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(16))

    return model, ((a, a + 0.1 * torch.randn(16, 8)), torch.arange(16)), loss, adam(model)


@training
def triplets() -> Training:
    model = Calls(lambda self, a, b, c: tuple(map(self.body, (a, b, c))), body=body(out=16))
    a = torch.randn(16, 8)
    batch = (a, a + 0.1 * torch.randn(16, 8), torch.randn(16, 8))
    return model, (batch, None), lambda out, _: F.triplet_margin_loss(*out), adam(model)


@training
def a_graph() -> Training:
    def run(self: Any, x: Tensor, edges: Tensor) -> Tensor:
        degree = torch.zeros(len(x)).index_add(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        for layer in self.layers:
            mean = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) / degree[:, None]
            x = layer(torch.cat([x, mean], 1)).relu()
        return self.head(x)

    model = Calls(run, layers=nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8)]), head=nn.Linear(8, 3))
    edges = torch.randint(30, (2, 90))
    return model, ((torch.randn(30, 8), edges), torch.arange(30) % 3), F.cross_entropy, adam(model, 1e-2)


@training
def graphs_that_are_pooled() -> Training:
    def run(self: Any, x: Tensor, edges: Tensor, of: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = x + torch.zeros_like(x).index_add(0, edges[1], self.second(x)[edges[0]])
        return self.head(torch.zeros(10, 16).index_add(0, of, x))

    model = Calls(run, first=nn.Linear(8, 16), second=nn.Linear(16, 16), head=nn.Linear(16, 2))
    batch = torch.randn(60, 8), torch.randint(60, (2, 120)), torch.arange(10).repeat_interleave(6)
    return model, (batch, torch.arange(10) % 2), F.cross_entropy, adam(model, 1e-2)


@training
def time_on_the_first_axis() -> Training:
    model = Calls(lambda self, x: self.head(self.rnn(x)[0][-1]), rnn=nn.GRU(4, 32), head=nn.Linear(32, 3))
    x = torch.randn(7, 24, 4)
    return model, (x, x[-1, :, :3].argmax(1)), F.cross_entropy, adam(model, 1e-2)


@training
def packed_sequences() -> Training:
    def run(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0][-1])

    model = Calls(run, rnn=nn.LSTM(4, 32, batch_first=True), head=nn.Linear(32, 3))
    x = torch.randn(24, 7, 4)
    return model, ((x, torch.arange(24) % 5 + 3), x[:, 0, :3].argmax(1)), F.cross_entropy, adam(model, 1e-2)


@training
def alignments() -> Training:
    def loss(outputs: Tensor, targets: Any) -> Tensor:
        return F.ctc_loss(outputs.log_softmax(-1).transpose(0, 1), *targets, blank=0)

    model = Calls(
        lambda self, x: self.head(self.rnn(x)[0]), rnn=nn.GRU(4, 32, batch_first=True), head=nn.Linear(32, 6)
    )
    targets = torch.randint(1, 6, (8, 4)), torch.full((8,), 20), torch.full((8,), 4)
    return model, (torch.randn(8, 20, 4), targets), loss, adam(model, 1e-2)


class LowRank(nn.Module):
    """A frozen layer with a trained product of two matrices, one of them zero, beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2 * x @ self.down.T @ self.up.T  # type: ignore[no-any-return]


@training
def low_rank_adapters() -> Training:
    model = body()
    for place in (0, 2, 4):
        model[place] = LowRank(model[place])  # type: ignore[arg-type]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, labelled(), F.cross_entropy, Adam(trained, 1e-2)


@training
def adapters_of_half_precision_weights() -> Training:
    model = nn.Sequential(LowRank(nn.Linear(8, 32)), nn.ReLU(), nn.Linear(32, 4))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer" not in name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, labelled(), F.cross_entropy, AdamW(trained, 1e-2)


@training
def a_prompt_before_a_frozen_network() -> Training:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = Calls(
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
    return model, (x, x[:, 0] % 3), F.cross_entropy, Adam([model.prompt, *model.head.parameters()], 1e-2)  # type: ignore[list-item,union-attr]


@training
def a_class_token_of_zeros() -> Training:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)

    def run(self: Any, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.body(x))[:, 0])

    model = Calls(
        run,
        patches=nn.Conv2d(3, 16, 4, 4),
        token=nn.Parameter(torch.zeros(1, 1, 16)),
        positions=nn.Parameter(torch.zeros(1, 17, 16)),
        body=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        norm=nn.LayerNorm(16),
        head=nn.Linear(16, 4),
    )
    nn.init.zeros_(model.head.weight)  # type: ignore[union-attr,arg-type]
    return model, (torch.randn(16, 3, 16, 16), torch.arange(16) % 4), F.cross_entropy, adam(model)


@training
def a_step_of_a_generator() -> Training:
    critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).requires_grad_(False)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
    model = Calls(lambda self, z: self.critic(self.generator(z)), generator=generator, critic=critic)
    # Real ones, smoothed at random.
    batch = torch.randn(32, 4), 1 - 0.1 * torch.rand(32, 1)
    return model, batch, F.binary_cross_entropy_with_logits, Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))


@training
def a_critic_with_a_gradient_penalty() -> Training:
    def run(self: Any, real: Tensor, fake: Tensor) -> Tensor:
        between = ((real + fake) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(self.body(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return self.body(fake).mean() - self.body(real).mean() + 10 * penalty

    model = Calls(run, body=nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
    batch = torch.randn(32, 8) + 1, torch.randn(32, 8)
    return model, (batch, None), lambda output, _: output, Adam(model.parameters(), 1e-3, betas=(0.0, 0.9))


@training
def a_closure() -> Training:
    model = body()
    return (
        model,
        labelled(),
        F.cross_entropy,
        LBFGS(model.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe"),
    )


@training
def lazy_layers_after_a_call() -> Training:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    x = torch.randn(16, 3, 8, 8)
    model(x)
    return model, (x, torch.arange(16) % 4), F.cross_entropy, adam(model)


@training
def a_rounded_forward_pass() -> Training:
    def run(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            scale = layer.weight.detach().abs().max() / 127
            rounded = layer.weight + ((layer.weight / scale).round() * scale - layer.weight).detach()
            x = F.linear(x, rounded, layer.bias).relu()
        return self.layers[-1](x)

    model = Calls(run, layers=nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)]))
    return model, labelled(), F.cross_entropy, adam(model)


@training
def fake_quantization() -> Training:
    def quantized(x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127)

    model = Calls(
        lambda self, x: self.last(quantized(self.first(quantized(x)).relu())),
        first=nn.Linear(8, 32),
        last=nn.Linear(32, 4),
    )
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)


@training
def weights_of_inference_mode() -> Training:
    with torch.inference_mode():
        frozen = nn.Linear(8, 32)
    model = Calls(
        lambda self, x: self.head(F.relu(self.frozen(x))), frozen=frozen.requires_grad_(False), head=body(32)
    )
    return model, labelled(), F.cross_entropy, Adam(model.head.parameters(), 1e-2)  # type: ignore[union-attr]


@training
def low_precision() -> Training:
    model = body().to(torch.bfloat16)
    x, y = labelled()
    return model, (x.bfloat16(), y), F.cross_entropy, SGD(model.parameters(), 0.1)


@training
def autocast_in_the_forward_pass() -> Training:
    def run(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(x)  # type: ignore[no-any-return]

    model = Calls(run, body=body())
    return model, labelled(), lambda out, y: F.cross_entropy(out.float(), y), adam(model)


@training
def complex_numbers() -> Training:
    def run(self: Any, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x) * self.filter
        return self.head(torch.cat([torch.fft.irfft(spectrum), spectrum.abs()], 1))

    model = Calls(run, filter=nn.Parameter(torch.randn(5, dtype=torch.complex64)), head=body(13))
    return model, labelled(), F.cross_entropy, adam(model)


@training
def sparse_features() -> Training:
    model = Calls(
        lambda self, x: self.head(F.relu(torch.sparse.mm(x, self.weight) + self.bias)),
        weight=nn.Parameter(0.3 * torch.randn(40, 16)),
        bias=nn.Parameter(torch.zeros(16)),
        head=nn.Linear(16, 3),
    )
    x = torch.randn(24, 40) * (torch.rand(24, 40) < 0.2)
    return model, (x.to_sparse(), torch.arange(24) % 3), F.cross_entropy, adam(model, 1e-2)


@training
def sparse_gradients() -> Training:
    model = nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Flatten(), nn.Linear(96, 4))
    batch = torch.randint(50, (16, 6)), torch.arange(16) % 4
    return model, batch, F.cross_entropy, SGD(model.parameters(), 0.1)


@training
def a_block_that_is_called_twice() -> Training:
    model = Calls(
        lambda self, x: self.head(self.block(self.block(self.first(x)).relu()).relu()),
        first=nn.Linear(8, 32),
        block=nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)),
        head=nn.Linear(32, 4),
    )
    return model, labelled(), F.cross_entropy, adam(model)


@training
def checkpointed_blocks() -> Training:
    def run(self: Any, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)

    blocks = nn.ModuleList(
        [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in "ab"]
    )
    model = Calls(run, blocks=blocks, head=nn.Linear(8, 4))
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)


@training
def a_compiled_network() -> Training:
    model = torch.compile(body(), backend="eager")
    return model, labelled(), F.cross_entropy, adam(model)  # type: ignore[return-value,arg-type]


@training
def normalized_weights() -> Training:
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
def a_wrapper() -> Training:
    model = nn.DataParallel(body())
    return model, labelled(), F.cross_entropy, adam(model)


@training
def weights_from_a_network() -> Training:
    def run(self: Any, x: Tensor, task: Tensor) -> Tensor:
        own = self.maker(task)
        parameters = {"weight": own[: 8 * 4].view(4, 8), "bias": own[8 * 4 :]}
        return functional_call(self.layer[0], parameters, (x,))

    # In a tuple, the layer is no part of the network: its own parameters are never read.
    model = Calls(run, maker=nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 36)), layer=(nn.Linear(8, 4),))
    x, y = labelled()
    return model, ((x, torch.randn(3)), y), F.cross_entropy, adam(model, 1e-2)


class Sign(torch.autograd.Function):
    """A sign with the gradient of the identity inside of [-1, 1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


@training
def an_own_function() -> Training:
    model = Calls(
        lambda self, x: self.last(Sign.apply(self.norm(self.first(x)))),
        first=nn.Linear(8, 64),
        norm=nn.BatchNorm1d(64),
        last=nn.Linear(64, 4),
    )
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)


@training
def operations_in_place() -> Training:
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        y.mul_(0.5).add_(1.0)
        y = F.relu(y, inplace=True)
        y = y * 2
        y[:, :4] += 1
        return self.last(y)

    model = Calls(run, first=nn.Linear(8, 32), last=nn.Linear(32, 4))
    return model, labelled(), F.cross_entropy, adam(model, 1e-2)


@training
def a_copy_as_teacher() -> Training:
    student = body()
    model = Calls(
        lambda self, x: (self.student(x), self.teacher(x)),
        student=student,
        teacher=deepcopy(body()).requires_grad_(False),
    )
    x, y = labelled()

    def loss(outputs: Any, y: Tensor) -> Tensor:
        own, taught = outputs
        soft = F.kl_div(own.log_softmax(1), taught.detach().softmax(1), reduction="batchmean")
        return F.cross_entropy(own, y) + 0.1 * soft

    return model, (x, y), loss, Adam(student.parameters(), 1e-2)


@training
def a_variational_autoencoder() -> Training:
    def run(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(z), mean, log_variance

    def loss(outputs: Any, x: Tensor) -> Tensor:
        made, mean, log_variance = outputs
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.mse_loss(made, x) + 0.01 * divergence

    model = Calls(run, encoder=body(out=8), decoder=body(width=4, out=8))
    x = torch.randn(32, 2) @ torch.randn(2, 8)
    return model, (x, x), loss, adam(model)


@training
def a_noise_predictor() -> Training:
    def run(self: Any, x: Tensor, t: Tensor) -> Tensor:
        return self.body(torch.cat([x, t[:, None].sin(), t[:, None].cos()], 1))

    model = Calls(
        run, body=nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))
    )
    noise = torch.randn(64, 8)
    return model, ((torch.randn(64, 8) * 0.3 + noise, torch.rand(64)), noise), F.mse_loss, adam(model)


@training
def a_field_of_one_point() -> Training:
    def run(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(30 * layer(x)) if layer is self.layers[0] else torch.sin(layer(x))
        return self.layers[-1](x)

    model = Calls(run, layers=nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 3)]))
    nn.init.uniform_(model.layers[0].weight, -0.5, 0.5)  # type: ignore[union-attr,index,arg-type]
    x = torch.rand(128, 2) * 2 - 1
    y = torch.stack([(5 * x[:, 0]).sin(), (4 * x[:, 1]).cos(), x.prod(1)], 1)
    return model, (x, y), F.mse_loss, adam(model)


@training
def an_equation_as_loss() -> Training:
    def run(self: Any, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = t.requires_grad_()
        u = self.body(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return u, slope, self.body(torch.zeros(1, 1))

    def loss(outputs: Any, _: Any) -> Tensor:
        u, slope, start = outputs
        return (slope + u).square().mean() + (start - 1).square().mean()

    model = Calls(
        run, body=nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    )
    return model, (torch.linspace(0, 2, 40)[:, None], None), loss, adam(model)


@training
def a_cosine_head_with_a_scale() -> Training:
    model = Calls(
        lambda self, x: 16 * F.normalize(self.body(x), dim=1) @ F.normalize(self.classes, dim=1).T,
        body=body(out=16),
        classes=nn.Parameter(torch.randn(4, 16)),
    )
    return model, labelled(), F.cross_entropy, adam(model)


@training
def a_policy() -> Training:
    model = body(out=3)
    states, actions = torch.randn(64, 8), torch.randint(3, (64,))
    returns = torch.randn(64)

    def loss(outputs: Tensor, targets: Any) -> Tensor:
        actions, returns = targets
        chosen = outputs.log_softmax(1).gather(1, actions[:, None])[:, 0]
        return -(chosen * returns).mean()

    return model, (states, (actions, returns)), loss, adam(model, 1e-3)


@training
def a_mixture_of_experts() -> Training:
    def run(self: Any, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(1).topk(2, 1)
        result = torch.zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            result = result.index_add(0, rows, expert(x[rows]) * weights[rows, slots][:, None])
        return result

    model = Calls(run, gate=nn.Linear(8, 4), experts=nn.ModuleList([body() for _ in range(4)]))
    return model, labelled(64), F.cross_entropy, adam(model)


@training
def bags_of_words() -> Training:
    model = Calls(
        lambda self, words, starts: self.head(self.bag(words, starts)),
        bag=nn.EmbeddingBag(50, 16),
        head=nn.Linear(16, 3),
    )
    batch = torch.randint(50, (96,)), torch.arange(0, 96, 4)
    return model, (batch, torch.arange(24) % 3), F.cross_entropy, adam(model, 3e-2)


@training
def several_sizes_of_images() -> Training:
    model = Calls(
        lambda self, images: torch.stack([self.head(self.body(image[None]).mean((2, 3))[0]) for image in images]),
        body=nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
        head=nn.Linear(32, 3),
    )
    images = [torch.randn(3, 8 + size, 9) + size % 3 for size in range(9)]
    return model, ((images,), torch.arange(9) % 3), F.cross_entropy, adam(model, 1e-2)
