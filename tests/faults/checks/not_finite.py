"""Values that are not finite: the first is named, with operation, module and line, in both directions."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import check, checks, given
from tests.faults.training import module


def _finite(function, half=False):
    """A function between two layers; an example is zero."""
    part = module(lambda self, x: function(x))
    model = nn.Sequential(nn.Linear(4, 6, bias=False), part, nn.Linear(6, 2))
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    x[3] = 0
    if half:
        model, x, y = model.half(), x.half(), y.half()
        nn.init.normal_(model[0].weight, std=50)
    return given(model, x, y, F.mse_loss)


def _length(x):
    return x.square().sum(1, keepdim=True)


NAN, ROOT, VALUE = r"div.*'value': 'NaN'", "'what': 'gradient'.*'operation': 'sqrt'", "not_finite"
rows = {
    "zero_by_zero": (VALUE, lambda x: x / x.norm(dim=1, keepdim=True), NAN),
    "overflow_of_float16": (VALUE, (lambda x: x.exp() / x.exp().sum(1, keepdim=True), True), NAN),
    "root_and_where": (VALUE, lambda x: torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x)), ROOT),
    "epsilon_outside_of_a_root": (VALUE, lambda x: x / (_length(x).sqrt() + 1e-3), ROOT),
    "epsilon_inside_of_a_root": ("", lambda x: x / (_length(x) + 1e-3).sqrt()),
}
checks(_finite, rows)


def _masked(length):
    def forward(self, x):
        logits = self.project(x) @ x.transpose(1, 2)
        hidden = torch.arange(x.shape[1]) >= length
        return torch.softmax(logits.masked_fill(hidden, float("-inf")), -1) @ x

    model = nn.Sequential(nn.Linear(8, 8), module(forward, project=(8, 8)))
    return given(model, torch.randn(4, 5, 8), torch.randn(4, 5, 8), F.mse_loss)


def _angle():
    """∂ arccos(c)/∂c is infinite at c = 1, where an output has the direction of its target."""
    model, x = nn.Linear(4, 4, bias=False), torch.eye(4).repeat(2, 1)
    nn.init.eye_(model.weight)
    return given(model, x, x, lambda o, t: torch.acos((o * t).sum(1)).mean())


def _state(name):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    model.state_dict()[name].fill_(float("nan"))
    return given(model, torch.randn(16, 3, 8, 8), torch.arange(16) % 3)


def _known_only(outputs, targets):
    known = targets.isfinite()
    return F.mse_loss(outputs[known], targets[known])


def _missing(loss):
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    y[5, 1] = float("nan")
    return given(nn.Linear(4, 2), x, y, loss)


def _ctc(outputs, targets):
    steps = outputs.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(steps, targets, torch.full((4,), 3), torch.full((4,), 6))


def _long():
    return given(nn.Linear(8, 5), torch.randn(4, 3, 8), torch.randint(1, 5, (4, 6)), _ctc)


def _ignored(index):
    loss = nn.CrossEntropyLoss(ignore_index=index)
    return given(nn.Linear(4, 5), torch.randn(9, 4), torch.full((9,), index), loss)


checks(_masked, {"rows_that_are_fully_masked": (VALUE, 0, 3, "softmax.*masked_fill")})
check("angle_in_the_loss", VALUE, _angle, says=r"'operation': 'acos'")
check("statistics_of_nan", "not_finite_state", lambda: _state("1.running_var"), says="evaluation.*1.running_var")
check("weights_of_nan", "not_finite_state", lambda: _state("4.weight"), says="4.weight")
kinds = ("not_finite_targets", "not_finite", "not_finite_inputs")
checks(_missing, {"missing_targets": (kinds, F.mse_loss, _known_only, "'values': 1, 'example': 5")})
check("text_longer_than_its_sound", VALUE, _long, says="'operation': 'ctc_loss'.*'value': 'infinite'")
for index in (-100, 0, 255):
    checks(_ignored, {f"all_labels_ignored_{abs(index)}": ("ignored_labels", index, "'labels': 9")})
