"""Training and evaluation, frozen parts, dropout and statistics; false alarms of these kinds."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torchvision.ops import FrozenBatchNorm2d

from normless.nn import FrozenBatchNorm
from tests.faults.checks.rows import adam, checks, given, layers, numbers
from tests.faults.training import made, module, train


def _images(examples=32):
    source = torch.Generator().manual_seed(1)
    return torch.randn(examples, 3, 16, 16, generator=source), torch.arange(examples) % 10


def _convolutions(norm=nn.BatchNorm2d):
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


@torch.no_grad()
def _seen(model, x):
    for _ in range(60):
        model.train()(x)
    return model


def _trained(model, x, y, rate, steps):
    train(made(model, x, y, adam(rate)), steps)
    model.zero_grad()
    return model


def _statistics(other):
    """Averages of these images, or of images twice as large and shifted."""
    x, y = _images()
    model = _trained(_seen(_convolutions(), x), x, y, 0.03, 80)
    return given(_seen(model, 3 * x + 1 if other else x), x, y)


def _signed(wrong):
    """Code that asks for the mode."""
    x = torch.randn(32, 6)
    y = (x @ torch.randn(6, 3)).argmax(1)
    last = module(lambda self, x: x if self.training else -x) if wrong else nn.Dropout(0.1)
    return given(_trained(layers(6, 32, 3, last=(last,)), x, y, 0.03, 50), x, y)


checks(_statistics, {"statistics_of_other_images": ("modes_differ", True, False)})
checks(_signed, {"sign_of_the_mode": ("modes_differ", True, False)})


def _frozen(in_evaluation):
    """A frozen backbone with norms, in training mode or in evaluation."""
    x, y = _images()
    model = _seen(_convolutions(), x)
    model[:6].requires_grad_(False).train(not in_evaluation)
    return given(model, x, y, optimizer=SGD(model[-1].parameters(), 0.1))


def _initial(norm, has_statistics=False):
    parts = [nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    model = nn.Sequential(*parts)
    if has_statistics:
        model[1].running_mean.fill_(0.3)
    return given(model, torch.randn(16, 3, 8, 8), torch.arange(16) % 2)


checks(_frozen, {"frozen_norms_that_move": ("moving_frozen_norms", False, True, r"where=\('1', '4'\)")})
for prefix, norm in (("", FrozenBatchNorm), ("torchvisions_", FrozenBatchNorm2d)):
    checks(_initial, {f"{prefix}frozen_norm_of_initial_statistics": ("initial_frozen_norms", norm, (norm, True))})


def _pooled():
    last = nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 3)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), *last)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pooled)
    return given(model, torch.randn(1, 3, 8, 8), torch.tensor([1]))


def _untracked():
    return given(_convolutions(lambda width: nn.BatchNorm2d(width, track_running_stats=False)), *_images())


def _in_place(norm, activation):
    """A norm, an activation in place, and a sum."""

    def forward(self, x):
        h = self.stem(x)
        h = h + self.act(self.norm(self.conv(h)))
        return self.head(h.mean((2, 3)))

    convs = {"stem": nn.Conv2d(3, 8, 1), "conv": nn.Conv2d(8, 8, 3, padding=1)}
    return given(module(forward, **convs, norm=norm(), act=activation(inplace=True), head=(8, 10)), *_images(16))


says = r"where=\('2.2',\).*drop_last"
checks(_pooled, {"norm_of_one_value": ("single_element_norm", (), says)})
checks(_untracked, {"norm_without_statistics": ("mixes_examples", (), "running statistics.*'group_norm'")})
for number, norm in enumerate(
    (lambda: nn.InstanceNorm2d(8, affine=True), lambda: nn.InstanceNorm2d(8), lambda: nn.GroupNorm(2, 8))
):
    for act in (nn.ReLU, nn.LeakyReLU, nn.SiLU):
        checks(_in_place, {f"{act.__name__.lower()}_in_place_after_norm_{number}": ("", (norm, act))})


def _standardized():
    """A norm of weights: two examples are too few for a batch norm, and there is none."""

    def forward(self, x):
        flat = self.weight.reshape(1, 8, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, padding=1)

    conv = module(forward, weight=nn.Parameter(0.2 * torch.randn(8, 3, 3, 3)))
    model = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return given(model, *_images(2))


checks(_standardized, {"norm_of_weights": ("", ())})


def _attended(h, p):
    return F.scaled_dot_product_attention(*3 * [h.unflatten(1, (4, 8))], dropout_p=p).flatten(1)


def _dropping(function):
    """A network with a function of the network and its features, which may be random in evaluation mode."""
    parts = {"first": (8, 32), "last": (32, 4), "dropout": nn.Dropout(0.2)}
    model = module(lambda self, x: self.last(function(self, F.relu(self.first(x)))), **parts)
    return given(model, *numbers(32, 8, 4))


rows = {
    "dropout_of_function_in_evaluation": (
        "dropout_in_evaluation",
        lambda net, h: F.dropout(h, 0.2),
        lambda net, h: F.dropout(h, 0.2, training=net.training),
    ),
    "dropout_of_attention_in_evaluation": (
        "dropout_in_evaluation",
        lambda net, h: _attended(h, 0.2),
        lambda net, h: _attended(h, 0.2 if net.training else 0.0),
    ),
    "dropout_of_a_module": ("", lambda net, h: net.dropout(h)),
    "noise_in_evaluation": ("", lambda net, h: h + 0.1 * torch.randn_like(h)),
}
checks(_dropping, rows)


def _momentum(momentum, steps=60):
    x, y = _images()
    x = 3 * x + 2
    model = _convolutions(lambda width: nn.BatchNorm2d(width, momentum=momentum))
    return given(_trained(model, x, y, 0.01, steps) if steps else model, x, y)


rows = {
    "momentum_of_a_thousandth": ("lagging_statistics", 0.001, 0.1),
    # A momentum of 0.01 is torchvision's for some networks; it lags for a while, as any average does.
    "momentum_of_a_hundredth": ("", 0.01),
    "momentum_of_all_but_a_hundredth": ("last_batch_statistics", (0.99, 0), (1.0, 0)),
}
checks(_momentum, rows)


def _carried(detached, remembers=True):
    """A recurrent network that carries its hidden state along."""

    def forward(self, x):
        y, hidden = self.rnn(x, self.hidden if remembers else None)
        self.hidden = hidden.detach() if detached else hidden
        return self.head(y[:, -1])

    model = module(forward, rnn=nn.GRU(4, 16, batch_first=True), head=(16, 3), hidden=None)
    return given(model, torch.randn(24, 6, 4), torch.arange(24) % 3)


rows = {
    "state_with_its_graph": ("undetached_state", False, True, r"where=\('hidden',\)"),
    "state_that_is_never_read": ("", (False, False)),
}
checks(_carried, rows)
