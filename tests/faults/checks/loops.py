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


def _batch():
    x = torch.randn(32, 20)
    return x, x[:, :3].argmax(1)


def _loop(run, model=None):
    """Return a loop of `run`, which gets the network and a function that draws a batch and returns its loss."""
    torch.manual_seed(0)

    def looped(model, batches, optimizer, observe):
        torch.manual_seed(1)

        def loss():
            x, y = _batch()
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


def _simple(
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
    return _simple(schedule=lambda chosen: kind(chosen, *arguments), **options)


check("gradients_kept", "kept_gradients", _simple(zero=False), _simple())
check("gradients_zeroed_late", "cleared_gradients", _simple(late_zero=True), _simple(every=4))
check(
    "gradients_set_to_zero_late",
    "cleared_gradients",
    _simple(late_zero=True, set_to_none=False),
    _simple(set_to_none=False),
)
check("never_stepped", "never_stepped", _simple(step=False), _simple(every=4, set_to_none=False))
check("never_stepped_nor_zeroed", "never_stepped", _simple(step=False, zero=False))
check(
    "adam_made_in_every_step",
    "lost_state",
    _simple(anew=True, optimizer=lambda model: Adam(model.parameters(), lr=1e-3)),
    _simple(anew=True),
)
# Averages are swapped in once for good, or weights are drawn anew.
check(
    "averages_not_swapped_back",
    "set_back",
    lambda model, loss: _simple(between=_validated(restore=False))(model, loss),
    lambda model, loss: _simple(between=_validated(restore=True))(model, loss),
)
check("averages_swapped_in_once", "", lambda model, loss: _simple(between=_validated(False, once=True))(model, loss))
check("weights_drawn_anew", "set_back", _simple(between=_reset))
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
                model(_batch()[0])
            model.train(train)

    return _simple(steps=40, between=between)


def _normalized():
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


check("left_in_evaluation", "left_in_evaluation", _evaluated(False), _evaluated(True), _normalized)


def _rounded(features, outputs):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias).round()

    layer = nn.Linear(features, outputs)
    return module(forward, weight=layer.weight, bias=layer.bias)


check("rounded_outputs", "zero_gradients", _simple(steps=20), model=lambda: _rounded(20, 3))
check("rounded_first_layer", "", _simple(steps=20), model=lambda: nn.Sequential(_rounded(20, 8), nn.Linear(8, 3)))


def _decayed(model, _):
    for weight in model.parameters():
        weight.data.mul_(0.9)


# Weights that are decayed by hand; a discriminator that also gets the generator's gradients.
check("weights_decayed_by_hand", "", _simple(steps=60, between=_decayed))


def _discriminated(model, _):
    generator = nn.Linear(4, 20)
    ours, theirs = AdamW(generator.parameters(), lr=1e-3), AdamW(model.parameters(), lr=1e-3)
    for _ in range(40):
        theirs.zero_grad()
        fake = generator(torch.randn(8, 4))
        (model(_batch()[0]).mean() - model(fake.detach()).mean()).square().backward()
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
def _step_by_hand(parameters):
    for weight in parameters:
        weight -= 0.05 * weight.grad
        weight.grad = None


def _by_hand(model, loss):
    for _ in range(40):
        loss().backward()
        _step_by_hand(model.parameters())


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
        x, _ = _batch()
        first, second = model(x)
        (first.square().mean() + second.square().mean() + model.direct(x).square().mean()).backward()
        optimizer.step()


check("parts_of_other_outputs", "", _of_heads, model=_heads)


def _clipping(late=False, bound=0.1, scale=1.0, twice=False):
    def run(model, loss):
        optimizer = SGD(model.parameters(), lr=0.05)
        for _ in range(45):
            optimizer.zero_grad()
            (scale * loss()).backward()
            if not late:
                clip_grad_norm_(model.parameters(), bound)
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
            if late or twice:
                clip_grad_norm_(model.parameters(), bound)

    return run


check("clipped_after_the_step", "clipped_late", _clipping(late=True), _clipping())
check("clipped_before_and_after_the_step", "", _clipping(twice=True))
check("clipped_late_at_a_large_bound", "", _clipping(late=True, bound=100.0))
check("clipped_while_scaled", "clipped_tiny", _clipping(scale=65536.0), _clipping(scale=65536.0, bound=1e4))


def _replaced(model, loss):
    optimizer = SGD(model.parameters(), lr=0.05)
    model[4] = nn.Linear(32, 3)
    for _ in range(65):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def _by_two(model, loss):
    body, head = SGD(list(model.parameters())[:4], lr=0.05), SGD(list(model.parameters())[4:], lr=0.05)
    for index in range(65):
        model.zero_grad()
        loss().backward()
        body.step()
        if index % 10 == 9:
            head.step()


def _head_by_hand(model, loss):
    *body, weight, bias = model.parameters()
    optimizer = SGD(body, lr=0.05)
    for _ in range(65):
        model.zero_grad()
        loss().backward()
        optimizer.step()
        _step_by_hand((weight, bias))


check("replaced_head_of_a_loop", "untrained_parameters", _replaced, _by_two)
check("head_stepped_by_hand", "", _head_by_hand)


def _summed(divisor=1, rate=1.0):
    def run(model, loss):
        optimizer = SGD(model.parameters(), lr=rate, momentum=0.9)
        for _ in range(60):
            for _ in range(8):
                (loss() / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


check("passes_that_are_summed", "summed_passes", _summed(), _summed(divisor=8))
check("summed_passes_at_a_small_rate", "", _summed(rate=0.01))


def _micro_batches(size, often):
    """Accumulate the gradients of micro-batches, and zero them for every micro-batch or once per step."""

    def run(model, loss):
        optimizer = SGD(model.parameters(), 0.1)
        for _ in range(20):
            for part in range(size):
                if often or part == 0:
                    optimizer.zero_grad()
                (loss() / size).backward()
            optimizer.step()

    return run


check("three_micro_batches", "cleared_gradients", _micro_batches(3, often=True), _micro_batches(1, often=True))
check("four_micro_batches", "cleared_gradients", _micro_batches(4, often=True), _micro_batches(4, often=False))


def _adversarial(model, loss):
    """Look for inputs of a high loss by four passes whose gradients of the weights are thrown away."""
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(20):
        x, y = _batch()
        for _ in range(4):
            x = x.detach().requires_grad_()
            F.cross_entropy(model(x), y).backward()
            x = x + 0.01 * x.grad.sign()
            model.zero_grad()
        F.cross_entropy(model(x.detach()), y).backward()
        optimizer.step()


check("adversarial_inputs", "", _adversarial)


def _epochs(anew):
    def run(model, loss):
        optimizer = Adam(model.parameters(), 1e-3)
        for index in range(60):
            if anew and index % 10 == 0:
                optimizer = Adam(model.parameters(), 1e-3)
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    return run


check("adam_made_in_every_epoch", "lost_state", _epochs(True), _epochs(False))


def _scaler(unscaled):
    def run(model, loss):
        optimizer, scaler = Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cpu")
        for _ in range(40):
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            if unscaled:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()

    return run


check("loss_that_stays_scaled", "never_unscaled", _scaler(False), _scaler(True))


def _rare(scale):
    """One batch with a large gradient, after a hundred with small ones."""

    def run(model, loss):
        optimizer = Adam(model.parameters(), 0.1)
        for index in range(150):
            x, y = _batch()
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), (y + 1) % 3 if index == 110 and scale > 1 else y)
            ((scale if index == 110 else 1.0) * value).backward()
            optimizer.step()

    return run


check(
    "step_larger_than_those_before", "update_spike", _rare(100.0), _rare(1.0), lambda: layers(20, 32, 3, act=nn.Tanh)
)


def _frozen(mode):
    """Norms of a body that is frozen, in training mode or in evaluation."""
    body = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU()).requires_grad_(mode == "trained")
    return nn.Sequential(body.eval() if mode == "evaluation" else body, nn.Linear(32, 3))


check(
    "frozen_norms_of_a_loop",
    "moving_frozen_norms",
    _simple(steps=65),
    _simple(steps=65),
    lambda: _frozen("training"),
    lambda: _frozen("evaluation"),
)
check("trained_norms_of_a_loop", "", _simple(steps=65), model=lambda: _frozen("trained"))
