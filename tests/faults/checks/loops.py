"""Faults of the loop that a watch names, and loops that look alike and are right."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, StepLR

from tests.faults.catalogue import Loop, row_of_kinds
from tests.faults.checks.rows import layers
from tests.faults.training import module


def batch():
    x = torch.randn(32, 20)
    return x, x[:, :3].argmax(1)


def _loop(run, model=None):
    """Return a loop of `run`, which gets the network and a function that draws a batch and returns its loss."""
    torch.manual_seed(0)

    def looped(model, batches, optimizer, observe):
        torch.manual_seed(1)

        def loss():
            x, y = batch()
            value = F.cross_entropy(model(x), y)
            observe(value)
            return value

        run(model, loss)

    network = layers(20, 32, 32, 3) if model is None else model()
    return Loop(network, [], None, looped, lambda: float("nan"), by_findings=True)


def check(name, kind, run, twin=None, model=None, twins_model=None):
    """Add a loop that has a finding of this kind first, and its twin."""
    twins = twin and (lambda: _loop(twin, twins_model or model))
    row_of_kinds(name, (kind,) if kind else (), "seen", lambda: _loop(run, model), twins, in_loop=True)


def _sgd(model):
    return SGD(model.parameters(), lr=0.05)


def simple(
    *, zero=True, late_zero=False, step=True, steps=100, set_to_none=True, every=1, optimizer=_sgd, schedule=None,
    between=lambda *_: None, anew=False,
):  # fmt: skip
    def run(model, loss):
        chosen = optimizer(model)
        scheduler = None if schedule is None else schedule(chosen)
        for index in range(1, steps + 1):
            chosen = optimizer(model) if anew else chosen
            (loss() / every).backward()
            if late_zero:
                chosen.zero_grad(set_to_none)
            if step and index % every == 0:
                chosen.step()
                if scheduler is not None:
                    scheduler.step()
            if zero and index % every == 0:
                chosen.zero_grad(set_to_none)
            between(model, index)

    return run


def _validated(restore, once=False):
    average = {}

    def between(model, index):
        average.update({} if average else copy.deepcopy(model.state_dict()))
        for name, value in model.state_dict().items():
            average[name].lerp_(value, 0.01)
        if index % 10 == 0 and (index == 50 or not once):
            trained = copy.deepcopy(model.state_dict())
            model.load_state_dict(average)
            if restore:
                model.load_state_dict(trained)

    return between


def _reset(model, index):
    if index % 10 == 0:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()


def _scheduled(kind, *arguments, **options):
    return simple(schedule=lambda chosen: kind(chosen, *arguments), **options)


check("gradients_kept", "kept_gradients", simple(zero=False), simple())
check("gradients_zeroed_late", "cleared_gradients", simple(late_zero=True), simple(every=4))
check(
    "gradients_set_to_zero_late",
    "cleared_gradients",
    simple(late_zero=True, set_to_none=False),
    simple(set_to_none=False),
)
check("never_stepped", "never_stepped", simple(step=False), simple(every=4, set_to_none=False))
check("never_stepped_nor_zeroed", "never_stepped", simple(step=False, zero=False))
check(
    "adam_made_in_every_step",
    "lost_state",
    simple(anew=True, optimizer=lambda model: Adam(model.parameters(), lr=1e-3)),
    simple(anew=True),
)
# Averages are swapped in once for good, or weights are drawn anew.
check(
    "averages_not_swapped_back",
    "set_back",
    lambda model, loss: simple(between=_validated(restore=False))(model, loss),
    lambda model, loss: simple(between=_validated(restore=True))(model, loss),
)
check("averages_swapped_in_once", "", lambda model, loss: simple(between=_validated(False, once=True))(model, loss))
check("weights_drawn_anew", "set_back", simple(between=_reset))
check("step_schedule_of_five", "early_decay", _scheduled(StepLR, 5), _scheduled(StepLR, 50))
check(
    "schedule_of_zero",
    "zero_rate",
    _scheduled(LambdaLR, lambda step: 0.0),
    _scheduled(LambdaLR, lambda step: min(1.0, step / 15)),
)
check("warm_up_that_never_starts", "unstarted_warm_up", _scheduled(LambdaLR, lambda step: 1e-4, steps=110))
check(
    "linear_schedule_of_twenty", "zero_rate", _scheduled(LinearLR, 1.0, 0.0, 20), _scheduled(LinearLR, 1.0, 0.0, 95)
)
check("cosine_schedule_of_all_steps", "", _scheduled(CosineAnnealingLR, 100))


def _evaluated(train):
    def between(model, index):
        if index % 10 == 0:
            model.eval()
            with torch.no_grad():
                model(batch()[0])
            model.train(train)

    return simple(steps=40, between=between)


def _normalized():
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


check("left_in_evaluation", "left_in_evaluation", _evaluated(False), _evaluated(True), _normalized)


def _rounded(features, outputs):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias).round()

    layer = nn.Linear(features, outputs)
    return module(forward, weight=layer.weight, bias=layer.bias)


check("rounded_outputs", "zero_gradients", simple(steps=20), model=lambda: _rounded(20, 3))
check("rounded_first_layer", "", simple(steps=20), model=lambda: nn.Sequential(_rounded(20, 8), nn.Linear(8, 3)))


def _decayed(model, _):
    for weight in model.parameters():
        weight.data.mul_(0.9)


# Weights that are decayed by hand; a discriminator that also gets the generator's gradients.
check("weights_decayed_by_hand", "", simple(steps=60, between=_decayed))


def _discriminated(model, _):
    generator = nn.Linear(4, 20)
    ours, theirs = AdamW(generator.parameters(), lr=1e-3), AdamW(model.parameters(), lr=1e-3)
    for _ in range(40):
        theirs.zero_grad()
        fake = generator(torch.randn(8, 4))
        (model(batch()[0]).mean() - model(fake.detach()).mean()).square().backward()
        theirs.step()
        ours.zero_grad()
        model(fake).mean().backward()
        ours.step()


check("discriminator_of_a_generator", "", _discriminated)


def _closure(model, loss, **options):
    optimizer = LBFGS(model.parameters(), lr=0.1, **options)

    def run():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(15):
        optimizer.step(run)


def _clipped_twice(model, loss):
    optimizer = Adam(model.parameters(), lr=1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        value = loss()
        value.backward(retain_graph=True)
        value.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def step_by_hand(parameters):
    for weight in parameters:
        weight -= 0.05 * weight.grad
        weight.grad = None


def _by_hand(model, loss):
    for _ in range(40):
        loss().backward()
        step_by_hand(model.parameters())


check("closures", "", lambda model, loss: _closure(model, loss, max_iter=3))
check("line_search", "", lambda model, loss: _closure(model, loss, max_iter=4, line_search_fn="strong_wolfe"))
check("graph_used_twice", "", _clipped_twice)
check("steps_by_hand", "", _by_hand)


def _heads():
    """Parts that are trained by other outputs."""
    parts = {name: nn.Linear(20, 20) for name in ("body", "first", "second", "direct")}

    def forward(self, x):
        x = self.body(x)
        return self.first(x), self.second(x)

    return module(forward, **parts)


def _of_heads(model, _):
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        x, _ = batch()
        first, second = model(x)
        (first.square().mean() + second.square().mean() + model.direct(x).square().mean()).backward()
        optimizer.step()


check("parts_of_other_outputs", "", _of_heads, model=_heads)
