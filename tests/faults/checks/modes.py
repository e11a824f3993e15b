"""Training and evaluation, frozen parts, dropout and statistics; false alarms of these kinds."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from normless.nn import FrozenBatchNorm
from tests.faults.checks.rows import adam, check, given, layers, numbers
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


check("statistics_of_other_images", "modes_differ", lambda: _statistics(True), lambda: _statistics(False))


def _signed(wrong):
    """Code that asks for the mode."""
    torch.manual_seed(0)
    x = torch.randn(32, 6)
    y = (x @ torch.randn(6, 3)).argmax(1)
    last = module(lambda self, x: x if self.training else -x) if wrong else nn.Dropout(0.1)
    return given(_trained(layers(6, 32, 3, last=(last,)), x, y, 0.03, 50), x, y)


check("sign_of_the_mode", "modes_differ", lambda: _signed(True), lambda: _signed(False))


def _frozen(state):
    """A backbone with norms that is frozen, set to evaluation, or trained."""
    x, y = _images()
    model = _seen(_convolutions(), x)
    model[:6].requires_grad_(state == "trained")
    if state == "evaluation":
        model[:6].eval()
    if state == "whole":
        model.eval()
    return given(model, x, y, optimizer=SGD(model[-1].parameters(), 0.1))


check(
    "frozen_norms_that_move",
    "moving_frozen_norms",
    lambda: _frozen("training"),
    lambda: _frozen("evaluation"),
    r"where=\('1', '4'\)",
)


def _initial(norm, has_statistics=False):
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    model = nn.Sequential(*parts)
    if has_statistics:
        model[1].running_mean.fill_(0.3)
    return given(model, torch.randn(16, 3, 8, 8), torch.arange(16) % 2)


check(
    "frozen_norm_of_initial_statistics",
    "initial_frozen_norms",
    lambda: _initial(FrozenBatchNorm),
    lambda: _initial(FrozenBatchNorm, has_statistics=True),
)


def _of_torchvision(has_statistics):
    from torchvision.ops import FrozenBatchNorm2d

    return _initial(FrozenBatchNorm2d, has_statistics)


check(
    "torchvisions_frozen_norm_of_initial_statistics",
    "initial_frozen_norms",
    lambda: _of_torchvision(False),
    lambda: _of_torchvision(True),
)


def _pooled():
    torch.manual_seed(0)
    last = nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 3)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), *last)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pooled)
    return given(model, torch.randn(1, 3, 8, 8), torch.tensor([1]))


check("norm_of_one_value", "single_element_norm", _pooled, says=r"where=\('2.2',\).*drop_last")
check(
    "norm_without_statistics",
    "mixes_examples",
    lambda: given(_convolutions(lambda width: nn.BatchNorm2d(width, track_running_stats=False)), *_images()),
    says="running statistics.*'group_norm'",
)


def _in_place(norm, activation):
    """A norm, an activation in place, and a sum."""
    torch.manual_seed(0)

    def forward(self, x):
        h = self.stem(x)
        h = h + self.act(self.norm(self.conv(h)))
        return self.head(h.mean((2, 3)))

    convs = {"stem": nn.Conv2d(3, 8, 1), "conv": nn.Conv2d(8, 8, 3, padding=1)}
    return given(module(forward, **convs, norm=norm, act=activation, head=nn.Linear(8, 10)), *_images(16))


for number, norm in enumerate(
    (lambda: nn.InstanceNorm2d(8, affine=True), lambda: nn.InstanceNorm2d(8), lambda: nn.GroupNorm(2, 8))
):
    for act in (nn.ReLU, nn.LeakyReLU, nn.SiLU):
        name = f"{act.__name__.lower()}_in_place_after_norm_{number}"
        check(name, "", lambda norm=norm, act=act: _in_place(norm(), act(inplace=True)))


def _standardized():
    """A norm of weights: two examples are too few for a batch norm, and there is none."""
    torch.manual_seed(0)

    def forward(self, x):
        flat = self.weight.reshape(1, 8, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, padding=1)

    conv = module(forward, weight=nn.Parameter(0.2 * torch.randn(8, 3, 3, 3)))
    model = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return given(model, *_images(2))


check("norm_of_weights", "", _standardized)


def _dropping(way):
    """A network with dropout that may be active in evaluation mode."""
    torch.manual_seed(0)

    def forward(self, x):
        h = F.relu(self.first(x))
        if way == "function":
            h = F.dropout(h, 0.2)
        elif way == "function with the mode":
            h = F.dropout(h, 0.2, training=self.training)
        elif way == "noise":
            h = h + 0.1 * torch.randn_like(h)
        elif way.startswith("attention"):
            p = 0.2 if self.training or way == "attention" else 0.0
            h = F.scaled_dot_product_attention(*3 * [h.unflatten(1, (4, 8))], dropout_p=p).flatten(1)
        return self.last(self.dropout(h) if way == "module" else h)

    parts = {"first": nn.Linear(8, 32), "last": nn.Linear(32, 4), "dropout": nn.Dropout(0.2)}
    return given(module(forward, **parts), *numbers(32, 8, 4))


for way in ("function", "attention"):
    broken, twin = (lambda way=way: _dropping(way)), (lambda way=way: _dropping(f"{way} with the mode"))
    check(f"dropout_of_{way}_in_evaluation", "dropout_in_evaluation", broken, twin)
check("dropout_of_a_module", "", lambda: _dropping("module"))
check("noise_in_evaluation", "", lambda: _dropping("noise"))


def _momentum(momentum, steps):
    x, y = _images()
    x = 3 * x + 2
    model = _convolutions(lambda width: nn.BatchNorm2d(width, momentum=momentum))
    return given(_trained(model, x, y, 0.01, steps) if steps else model, x, y)


check("momentum_of_a_thousandth", "lagging_statistics", lambda: _momentum(0.001, 60), lambda: _momentum(0.1, 60))
# A momentum of 0.01 is torchvision's for some networks; it lags for a while, as any average does.
check("momentum_of_a_hundredth", "", lambda: _momentum(0.01, 60))
check(
    "momentum_of_all_but_a_hundredth", "last_batch_statistics", lambda: _momentum(0.99, 0), lambda: _momentum(1.0, 0)
)


def _carried(detached, remembers=True):
    """A recurrent network that carries its hidden state along."""
    torch.manual_seed(0)

    def forward(self, x):
        y, hidden = self.rnn(x, self.hidden if remembers else None)
        self.hidden = hidden.detach() if detached else hidden
        return self.head(y[:, -1])

    model = module(forward, rnn=nn.GRU(4, 16, batch_first=True), head=nn.Linear(16, 3), hidden=None)
    return given(model, torch.randn(24, 6, 4), torch.arange(24) % 3)


check(
    "state_with_its_graph",
    "undetached_state",
    lambda: _carried(False),
    lambda: _carried(True),
    r"where=\('hidden',\)",
)
check("state_that_is_never_read", "", lambda: _carried(False, remembers=False))
