"""Values that are not finite: the first is named, with operation, module and line, in both directions."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import check, given
from tests.faults.training import module


def _unit(x):
    return x / x.norm(dim=1, keepdim=True)


def _powers(x):
    return x.exp() / x.exp().sum(1, keepdim=True)


def _rooted(x):
    return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))


def _scaled(x):
    return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-3)


def _smooth(x):
    return x / (x.square().sum(1, keepdim=True) + 1e-3).sqrt()


def _finite(function, half=False):
    """A function between two layers; an example is zero."""
    torch.manual_seed(0)
    part = module(lambda self, x: function(x))
    model = nn.Sequential(nn.Linear(4, 6, bias=False), part, nn.Linear(6, 2))
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    x[3] = 0
    if half:
        model, x, y = model.half(), x.half(), y.half()
        nn.init.normal_(model[0].weight, std=50)
    return given(model, x, y, F.mse_loss)


for name, broken, line in (
    ("zero_by_zero", lambda: _finite(_unit), r"div.*'value': 'NaN'"),
    ("overflow_of_float16", lambda: _finite(_powers, half=True), r"div.*'value': 'NaN'"),
    ("root_and_where", lambda: _finite(_rooted), "'what': 'gradient'.*'operation': 'sqrt'"),
    ("epsilon_outside_of_a_root", lambda: _finite(_scaled), "'what': 'gradient'.*'operation': 'sqrt'"),
):
    check(name, "not_finite", broken, says=line)
check("epsilon_inside_of_a_root", "", lambda: _finite(_smooth))


def _masked(length):
    torch.manual_seed(0)

    def forward(self, x):
        logits = self.project(x) @ x.transpose(1, 2)
        hidden = torch.arange(x.shape[1]) >= length
        return torch.softmax(logits.masked_fill(hidden, float("-inf")), -1) @ x

    model = nn.Sequential(nn.Linear(8, 8), module(forward, project=nn.Linear(8, 8)))
    return given(model, torch.randn(4, 5, 8), torch.randn(4, 5, 8), F.mse_loss)


check("rows_that_are_fully_masked", "not_finite", lambda: _masked(0), lambda: _masked(3), "softmax.*masked_fill")


def _angle():
    """∂ arccos(c)/∂c is infinite at c = 1, where an output has the direction of its target."""
    model, x = nn.Linear(4, 4, bias=False), torch.eye(4).repeat(2, 1)
    nn.init.eye_(model.weight)
    return given(model, x, x, lambda o, t: torch.acos((o * t).sum(1)).mean())


check("angle_in_the_loss", "not_finite", _angle, says=r"'operation': 'acos'")


def _state(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    model.state_dict()[name].fill_(float("nan"))
    return given(model, torch.randn(16, 3, 8, 8), torch.arange(16) % 3)


check("statistics_of_nan", "not_finite_state", lambda: _state("1.running_var"), says="evaluation.*1.running_var")
check("weights_of_nan", "not_finite_state", lambda: _state("4.weight"), says="4.weight")


def _missing(leaves_out):
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    y[5, 1] = float("nan")

    def known_only(outputs, targets):
        known = targets.isfinite()
        return F.mse_loss(outputs[known], targets[known])

    return given(nn.Linear(4, 2), x, y, known_only if leaves_out else F.mse_loss)


NOT_FINITE = ("not_finite_targets", "not_finite", "not_finite_inputs")
check("missing_targets", NOT_FINITE, lambda: _missing(False), lambda: _missing(True), "'values': 1, 'example': 5")


def _ctc(outputs, targets):
    steps = outputs.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(steps, targets, torch.full((4,), 3), torch.full((4,), 6))


check(
    "text_longer_than_its_sound",
    "not_finite",
    lambda: given(nn.Linear(8, 5), torch.randn(4, 3, 8), torch.randint(1, 5, (4, 6)), _ctc),
    says="'operation': 'ctc_loss'.*'value': 'infinite'",
)
for index in (-100, 0, 255):
    check(
        f"all_labels_ignored_{abs(index)}",
        "ignored_labels",
        lambda i=index: given(
            nn.Linear(4, 5), torch.randn(9, 4), torch.full((9,), i), nn.CrossEntropyLoss(ignore_index=i)
        ),
        says="'labels': 9",
    )
