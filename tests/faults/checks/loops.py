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
from tests.faults.training import adam, module, sgd

PLAIN = sgd(0.05, 0.0)


def batch():
    x = torch.randn(32, 20)
    return x, x[:, :3].argmax(1)


def _loop(run, model):
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

    return Loop(model(), [], None, looped, lambda: float("nan"), by_findings=True)


def _perceptron():
    return layers(20, 32, 32, 3)


def check(name, kind, run, twin=None, model=_perceptron, twins_model=None):
    """Add a loop that has a finding of this kind first, and its twin."""
    twins = twin and (lambda: _loop(twin, twins_model or model))
    row_of_kinds(name, (kind,) if kind else (), "seen", lambda: _loop(run, model), twins, in_loop=True)


def simple(
    *, zero=True, late_zero=False, step=True, steps=100, set_to_none=True, every=1, optimizer=PLAIN,
    schedule=None, between=lambda *_: None, anew=False,
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
    def run(model, loss):
        average = copy.deepcopy(model.state_dict())

        def between(model, index):
            if index == 1:
                average.update(copy.deepcopy(model.state_dict()))
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 0.01)
            if index % 10 == 0 and (index == 50 or not once):
                trained = copy.deepcopy(model.state_dict())
                model.load_state_dict(average)
                if restore:
                    model.load_state_dict(trained)

        simple(between=between)(model, loss)

    return run


def _reset(model, index):
    for layer in model.modules() if index % 10 == 0 else ():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


def _scheduled(kind, *arguments, **options):
    return simple(schedule=lambda chosen: kind(chosen, *arguments), **options)


LATE = "cleared_gradients"
check("gradients_kept", "kept_gradients", simple(zero=False), simple())
check("gradients_zeroed_late", LATE, simple(late_zero=True), simple(every=4))
check("gradients_set_to_zero_late", LATE, simple(late_zero=True, set_to_none=False), simple(set_to_none=False))
check("never_stepped", "never_stepped", simple(step=False), simple(every=4, set_to_none=False))
check("never_stepped_nor_zeroed", "never_stepped", simple(step=False, zero=False))
check("adam_made_in_every_step", "lost_state", simple(anew=True, optimizer=adam(1e-3)), simple(anew=True))
# Averages are swapped in once for good, or weights are drawn anew.
check("averages_not_swapped_back", "set_back", _validated(restore=False), _validated(restore=True))
check("averages_swapped_in_once", "", _validated(restore=False, once=True))
check("weights_drawn_anew", "set_back", simple(between=_reset))
check("step_schedule_of_five", "early_decay", _scheduled(StepLR, 5), _scheduled(StepLR, 50))
warm_up = _scheduled(LambdaLR, lambda step: min(1.0, step / 15))
check("schedule_of_zero", "zero_rate", _scheduled(LambdaLR, lambda step: 0.0), warm_up)
check("warm_up_that_never_starts", "unstarted_warm_up", _scheduled(LambdaLR, lambda step: 1e-4, steps=110))
short, whole = (_scheduled(LinearLR, 1.0, 0.0, steps) for steps in (20, 95))
check("linear_schedule_of_twenty", "zero_rate", short, whole)
check("cosine_schedule_of_all_steps", "", _scheduled(CosineAnnealingLR, 100))


def _rounded(features, outputs):
    layer = nn.Linear(features, outputs)
    forward = lambda self, x: F.linear(x, self.weight, self.bias).round()  # noqa: E731
    return module(forward, weight=layer.weight, bias=layer.bias)


def _decayed(model, _):
    for weight in model.parameters():
        weight.data.mul_(0.9)


def _discriminated(model, _):
    """A discriminator that also gets the generator's gradients."""
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


def _closure(**options):
    def trained(model, loss):
        optimizer = LBFGS(model.parameters(), lr=0.1, **options)

        def run():
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(15):
            optimizer.step(run)

    return trained


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


def _heads():
    """Parts that are trained by other outputs."""

    def forward(self, x):
        x = self.body(x)
        return self.first(x), self.second(x)

    return module(forward, body=(20, 20), first=(20, 20), second=(20, 20), direct=(20, 20))


def _of_heads(model, _):
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        x, _ = batch()
        first, second = model(x)
        (first.square().mean() + second.square().mean() + model.direct(x).square().mean()).backward()
        optimizer.step()


check("rounded_outputs", "zero_gradients", simple(steps=20), model=lambda: _rounded(20, 3))
check("rounded_first_layer", "", simple(steps=20), model=lambda: nn.Sequential(_rounded(20, 8), nn.Linear(8, 3)))
check("weights_decayed_by_hand", "", simple(steps=60, between=_decayed))
check("discriminator_of_a_generator", "", _discriminated)
check("closures", "", _closure(max_iter=3))
check("line_search", "", _closure(max_iter=4, line_search_fn="strong_wolfe"))
check("graph_used_twice", "", _clipped_twice)
check("steps_by_hand", "", _by_hand)
check("parts_of_other_outputs", "", _of_heads, model=_heads)
