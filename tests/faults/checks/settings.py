"""Settings of an optimizer that keep a batch from being fitted, each beside one that is unusual and works."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from tests.faults.checks.rows import adam, check, checks, given, layers


def _groups(weights, biases, kind=SGD, **options):
    def make(model):
        parts = [[p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False)]
        return kind([{"params": parts[0], "lr": weights}, {"params": parts[1], "lr": biases}], **options)

    return make


def _clusters():
    torch.manual_seed(1)
    targets = torch.arange(120) % 6
    return 2 * torch.randn(6, 10)[targets] + 0.5 * torch.randn(120, 10), targets


def _set(make):
    return given(layers(10, 32, 32, 6), *_clusters(), optimizer=make, trial_steps=20)


for name, kind, says, wrong, right in (
    ("epsilon_of_ten", "unusual_setting", "eps", (Adam, 1e-3, {"eps": 10.0}), (Adam, 1e-3, {"eps": 1e-4})),
    ("epsilon_of_rmsprop", "unusual_setting", "eps", (RMSprop, 1e-2, {"eps": 100.0}), None),
    (
        "betas_swapped",
        "swapped_betas",
        "0.999",
        (Adam, 1e-2, {"betas": (0.999, 0.9)}),
        (AdamW, 1e-3, {"betas": (0.9, 0.95)}),
    ),
    ("momentum_of_999", "effective_rate", "0.999", (SGD, 0.1, {"momentum": 0.999}), (SGD, 1e-3, {"momentum": 0.99})),
    (
        "decay_of_adam",
        "excessive_decay",
        "weight decay",
        (Adam, 3e-3, {"weight_decay": 1.0}),
        (Adam, 3e-3, {"weight_decay": 1e-4}),
    ),
):
    make = lambda value: lambda: _set(lambda m: value[0](m.parameters(), value[1], **value[2]))  # noqa: E731
    check(name, kind, make(wrong), right and make(right), says)
check("decoupled_decay_of_a_third", "", lambda: _set(lambda m: AdamW(m.parameters(), 1e-3, weight_decay=0.3)))
check(
    "rate_of_biases_too_large",
    "rate_too_large",
    lambda: _set(_groups(0.05, 300.0, momentum=0.9)),
    lambda: _set(_groups(0.05, 0.1, momentum=0.9)),
    "group 1",
)
check(
    "rate_of_weights_too_small",
    "rate_too_small",
    lambda: _set(_groups(1e-9, 1e-2, AdamW)),
    lambda: _set(_groups(1e-3, 1e-2, AdamW)),
    "group 0",
)


def _clipped(limit):
    model = layers(10, 32, 32, 6)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-limit, limit))
    return given(model, *_clusters(), optimizer=SGD(model.parameters(), 0.1), trial_steps=20)


check("hooks_that_clip_gradients", "clipped_to_nothing", lambda: _clipped(1e-6), lambda: _clipped(1.0))


def _without_norms(count):
    """An optimizer that does not hold the norms, or neither the last layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 6))
    held = [*model[0].parameters(), *model[3].parameters()][:count]
    return given(model, *_clusters(), optimizer=Adam(held, 1e-2), trial_steps=20)


check(
    "last_layer_outside_the_optimizer", "untrained_parameters", lambda: _without_norms(2), lambda: _without_norms(4)
)


def _tried(x, y, outputs, loss=F.cross_entropy, optimizer=None, act=nn.ReLU, steps=10, hidden=32):
    widths = (x.shape[1], hidden, outputs) if hidden else (x.shape[1], outputs)
    return given(layers(*widths, act=act), x, y, loss, optimizer or adam(), trial_steps=steps)


def _vectors(count=32, seed=0):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def _surrogate(outputs, actions):
    """The value of a policy's surrogate is the same for all outputs."""
    logarithms = F.log_softmax(outputs, 1).gather(1, actions[:, None])[:, 0]
    return -((logarithms - logarithms.detach()).exp() * torch.linspace(-1, 1, len(actions))).mean()


X = _vectors()
PAIRS = torch.arange(32) % 2
check(
    "every_example_with_both_labels",
    "prevented_by_data",
    lambda: _tried(X[:16].repeat(2, 1) + 1e-6 * _vectors(32, 1), torch.arange(32) // 16, 2),
)
check("rate_at_which_steps_hardly_lower", "", lambda: _tried(X, PAIRS, 2, optimizer=adam(1e-3)))
check(
    "two_percent_of_the_variance",
    "",
    lambda: _tried(_vectors(256), 0.15 * _vectors(256)[:, :1] + _vectors(256, 1)[:, :1], 1, F.mse_loss, hidden=0),
)
check(
    "surrogate_of_a_policy",
    "",
    lambda: _tried(_vectors(256), torch.arange(256) % 4, 4, _surrogate, adam(1e-3), nn.Tanh),
)


def _scores(softened):
    """The loss falls until one score is 0: a smaller rate only delays it."""

    def loss(outputs, targets):
        scores = F.softplus(outputs) if softened else F.relu(1 + outputs)
        shares = scores / scores.sum(1, keepdim=True)
        return -(F.one_hot(targets, 3) * shares.log()).sum(1).mean()

    return _tried(X, torch.arange(32) % 3, 3, loss, lambda net: SGD(net.parameters(), 0.5), steps=40)


check("score_that_becomes_zero", "not_finite", lambda: _scores(False), lambda: _scores(True), "steps at rate 0.5")
for rate in (300.0, 1e-7, 1e-13):
    kind = "rate_too_large" if rate > 1 else "rate_too_small"
    check(
        f"rate_of_{rate:g}".replace("-", "_"),
        kind,
        lambda rate=rate: _tried(
            X, PAIRS, 2, None or F.cross_entropy, lambda n: SGD(n.parameters(), rate), nn.Tanh, 20
        ),
        lambda: _tried(X, PAIRS, 2, F.cross_entropy, lambda n: SGD(n.parameters(), 0.1), nn.Tanh, 20),
    )


def _far_too_large(make):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    return _tried(x, x[:, :1].tanh(), 1, F.mse_loss, make)


checks(
    {
        "rate_of_a_million": (
            "rate_too_large",
            lambda net: SGD(net.parameters(), 1e6),
            lambda net: Adam(net.parameters()),
        ),
        "rate_of_a_billion": ("rate_too_large", lambda net: SGD(net.parameters(), 1e9)),
    },
    _far_too_large,
)
for scale in (1.0, 1e4):
    for reduction in ("mean", "sum"):
        # No limit is absolute: a loss of 10⁸ is that of large targets.
        check(
            f"targets_of_{scale:g}_{reduction}",
            "",
            lambda scale=scale, reduction=reduction: _tried(
                _vectors(64),
                scale * _vectors(64)[:, :1] + scale,
                1,
                nn.MSELoss(reduction=reduction),
                lambda net: SGD(net.parameters(), 0.05 / (64 if reduction == "sum" else 1)),
                steps=20,
                hidden=0,
            ),
        )


def _generator(rate):
    """A generator's targets are all alike, and the best constant outputs are the best of all."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    return _tried(X, PAIRS, 2, lambda outputs, batch: F.softplus(-critic(outputs)).mean(), adam(rate))


check("generator_of_constant_targets", "", lambda: _generator(1e-2))
check(
    "large_inputs_that_train",
    "",
    lambda: _tried(30 * _vectors(64), (_vectors(64) @ torch.eye(6)[:, :3]).argmax(1), 3, steps=60, hidden=64),
)
