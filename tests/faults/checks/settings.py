"""Settings of an optimizer that keep a batch from being fitted, each beside one that is unusual and works."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from tests.faults.checks.rows import adam, checks, given, layers
from tests.faults.training import adam as any_optimizer


def _clusters():
    torch.manual_seed(1)
    targets = torch.arange(120) % 6
    return 2 * torch.randn(6, 10)[targets] + 0.5 * torch.randn(120, 10), targets


def _set(kind, rate, **options):
    optimizer = any_optimizer(rate, kind, **options)
    return given(layers(10, 32, 32, 6), *_clusters(), optimizer=optimizer, trial_steps=20)


def _grouped(weights, biases, kind=SGD, **options):
    def make(model):
        parts = [[p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False)]
        return kind([{"params": parts[0], "lr": weights}, {"params": parts[1], "lr": biases}], **options)

    return given(layers(10, 32, 32, 6), *_clusters(), optimizer=make, trial_steps=20)


def _clipped(limit):
    model = layers(10, 32, 32, 6)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-limit, limit))
    return given(model, *_clusters(), optimizer=SGD(model.parameters(), 0.1), trial_steps=20)


def _without_norms(count):
    """An optimizer that does not hold the norms, or neither the last layer."""
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 6))
    held = [*model[0].parameters(), *model[3].parameters()][:count]
    return given(model, *_clusters(), optimizer=Adam(held, 1e-2), trial_steps=20)


rows = {
    "epsilon_of_ten": (
        *("unusual_setting", lambda: _set(Adam, 1e-3, eps=10.0)),
        *(lambda: _set(Adam, 1e-3, eps=1e-4), "eps"),
    ),
    "epsilon_of_rmsprop": ("unusual_setting", lambda: _set(RMSprop, 1e-2, eps=100.0), "eps"),
    "betas_swapped": (
        *("swapped_betas", lambda: _set(Adam, 1e-2, betas=(0.999, 0.9))),
        *(lambda: _set(AdamW, 1e-3, betas=(0.9, 0.95)), "0.999"),
    ),
    "momentum_of_999": (
        *("effective_rate", lambda: _set(SGD, 0.1, momentum=0.999)),
        *(lambda: _set(SGD, 1e-3, momentum=0.99), "0.999"),
    ),
    "decay_of_adam": (
        *("excessive_decay", lambda: _set(Adam, 3e-3, weight_decay=1.0)),
        *(lambda: _set(Adam, 3e-3, weight_decay=1e-4), "weight decay"),
    ),
    "decoupled_decay_of_a_third": ("", lambda: _set(AdamW, 1e-3, weight_decay=0.3)),
    "rate_of_biases_too_large": (
        *("rate_too_large", lambda: _grouped(0.05, 300.0, momentum=0.9)),
        *(lambda: _grouped(0.05, 0.1, momentum=0.9), "group 1"),
    ),
    "rate_of_weights_too_small": (
        *("rate_too_small", lambda: _grouped(1e-9, 1e-2, AdamW)),
        *(lambda: _grouped(1e-3, 1e-2, AdamW), "group 0"),
    ),
}
checks(lambda make: make(), rows)
checks(_clipped, {"hooks_that_clip_gradients": ("clipped_to_nothing", 1e-6, 1.0)})
checks(_without_norms, {"last_layer_outside_the_optimizer": ("untrained_parameters", 2, 4)})


def _tried(x, y, outputs, loss=F.cross_entropy, optimizer=None, act=nn.ReLU, steps=10, hidden=(32,)):
    network = layers(x.shape[1], *hidden, outputs, act=act)
    return given(network, x, y, loss, optimizer or adam(), trial_steps=steps)


def _vectors(count=32, seed=0):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def _sgd(rate):
    return any_optimizer(rate, SGD)


def _surrogate(outputs, actions):
    """The value of a policy's surrogate is the same for all outputs."""
    logarithms = F.log_softmax(outputs, 1).gather(1, actions[:, None])[:, 0]
    return -((logarithms - logarithms.detach()).exp() * torch.linspace(-1, 1, len(actions))).mean()


X, MANY = _vectors(), _vectors(256)
PAIRS, CE, MSE = torch.arange(32) % 2, F.cross_entropy, F.mse_loss
LARGEST = (_vectors(64) @ torch.eye(6)[:, :3]).argmax(1)
rows = {
    "every_example_with_both_labels": (
        *("prevented_by_data", (X[:16].repeat(2, 1) + 1e-6 * _vectors(32, 1), torch.arange(32) // 16, 2)),
    ),
    "rate_at_which_steps_hardly_lower": ("", (X, PAIRS, 2, CE, adam(1e-3))),
    "two_percent_of_the_variance": (
        *("", (MANY, 0.15 * MANY[:, :1] + _vectors(256, 1)[:, :1], 1, MSE, adam(), nn.ReLU, 10, ())),
    ),
    "surrogate_of_a_policy": ("", (MANY, torch.arange(256) % 4, 4, _surrogate, adam(1e-3), nn.Tanh)),
    "large_inputs_that_train": ("", (30 * _vectors(64), LARGEST, 3, CE, adam(), nn.ReLU, 60, (64,))),
}
checks(_tried, rows)


def _scores(softened):
    """The loss falls until one score is 0: a smaller rate only delays it."""

    def loss(outputs, targets):
        scores = F.softplus(outputs) if softened else F.relu(1 + outputs)
        shares = scores / scores.sum(1, keepdim=True)
        return -(F.one_hot(targets, 3) * shares.log()).sum(1).mean()

    return _tried(X, torch.arange(32) % 3, 3, loss, _sgd(0.5), steps=40)


def _rated(rate):
    return _tried(X, PAIRS, 2, CE, _sgd(rate), nn.Tanh, 20)


def _far_too_large(optimizer):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    return _tried(x, x[:, :1].tanh(), 1, MSE, optimizer)


checks(_scores, {"score_that_becomes_zero": ("not_finite", False, True, "steps at rate 0.5")})
rows = {
    "rate_of_300": ("rate_too_large", 300.0, 0.1),
    "rate_of_1e_07": ("rate_too_small", 1e-7, 0.1),
    "rate_of_1e_13": ("rate_too_small", 1e-13, 0.1),
}
checks(_rated, rows)
rows = {
    "rate_of_a_million": ("rate_too_large", _sgd(1e6), adam(1e-3)),
    "rate_of_a_billion": ("rate_too_large", _sgd(1e9)),
}
checks(_far_too_large, rows)


def _scaled(scale, reduction):
    """No limit is absolute: a loss of 10⁸ is that of large targets."""
    x, rate = _vectors(64), 0.05 / (64 if reduction == "sum" else 1)
    return _tried(x, scale * x[:, :1] + scale, 1, nn.MSELoss(reduction=reduction), _sgd(rate), steps=20, hidden=())


def _generator(rate):
    """A generator's targets are all alike, and the best constant outputs are the best of all."""
    critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    return _tried(X, PAIRS, 2, lambda outputs, batch: F.softplus(-critic(outputs)).mean(), adam(rate))


for scale in (1.0, 1e4):
    for reduction in ("mean", "sum"):
        checks(_scaled, {f"targets_of_{scale:g}_{reduction}": ("", (scale, reduction))})
checks(_generator, {"generator_of_constant_targets": ("", 1e-2)})
