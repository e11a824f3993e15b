"""Faults that only the loop shows: gradients, rates and steps, weights overwritten, modes left on, odd batches."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from tests.faults import data
from tests.faults.catalogue import Loop, fault
from tests.faults.networks import mlp
from tests.faults.training import (
    accuracy,
    adam,
    adamw,
    backward,
    digit_accuracy,
    digit_batches,
    digit_loop,
    finite,
    module,
    r_squared,
    sgd,
)


def _steps(
    zero="before", loss=F.cross_entropy, before=lambda model, optimizer: None, after=lambda model, index: None
):
    """Return a loop: `before(model, optimizer)` is called before each step, `after(model, index)` after it."""

    def run(model, batches, optimizer, observe):
        for index, value in backward(model, batches, optimizer, zero, loss):
            before(model, optimizer)
            optimizer.step()
            observe(value)
            after(model, index)

    return run


_plain = _steps()


def _scheduled(make, due=lambda index: True, zero="before", loss=F.cross_entropy):
    """Return a loop that steps a schedule after the batches that are due."""

    def run(model, batches, optimizer, observe):
        scheduler = make(optimizer)
        after = lambda model, index: scheduler.step() if due(index) else None  # noqa: E731
        _steps(zero, loss, after=after)(model, batches, optimizer, observe)

    return run


def _digits(optimizer, run, count=160, size=32):
    return digit_loop(mlp(64, 64, 64, 10), optimizer, run, count, size)


def _smooth(x, y, model, optimizer, run):
    """Return a loop over batches of a smooth function."""
    batches = [(x[part], y[part]) for _ in range(50) for part in torch.randperm(512).view(4, 128)]
    return Loop(model, batches, optimizer(model), run, r_squared(model, x, y))


@fault
def zero_grad_missing(broken: bool) -> Loop:
    """Gradients are never set to zero, and every step follows the sum of all so far."""
    return _digits(sgd(0.1, 0.0), _steps("never" if broken else "before"), 200)


@fault
def zero_grad_between_backward_and_step(broken: bool) -> Loop:
    """Gradients are set to zero after they are computed and before they are used."""
    gru = nn.GRU(1, 24, batch_first=True)
    model = module(lambda self, x: self.classifier(self.gru(x)[1][-1]), gru=gru, classifier=(24, 2))
    late = _steps("never", before=lambda model, optimizer: optimizer.zero_grad())
    batches = [data.waves(32, 24) for _ in range(120)]
    run = late if broken else _plain
    return Loop(model, batches, adam(1e-2)(model), run, accuracy(model, *data.waves(128, 24)))


@fault
def step_schedule_per_batch(broken: bool) -> Loop:
    """A schedule that is to divide the rate by ten after 5 epochs is stepped per batch."""
    make = lambda optimizer: StepLR(optimizer, step_size=5, gamma=0.1)  # noqa: E731
    return _digits(sgd(0.1), _scheduled(make, lambda index: broken or index % 32 == 31))


@fault
def cosine_schedule_of_too_few_steps(broken: bool) -> Loop:
    """A cosine schedule of 12 epochs is stepped per batch: the rate is 0 after 12 batches."""
    length = 12 if broken else 200
    make = lambda optimizer: CosineAnnealingLR(optimizer, T_max=length)  # noqa: E731
    run = _scheduled(make, lambda index: index < length, "after", F.mse_loss)
    return _smooth(*data.smooth_function(512), mlp(6, 64, 64, 1, act=nn.SiLU), adamw(1e-2), run)


@fault
def warm_up_never_stepped(broken: bool) -> Loop:
    """A linear warm-up starts at rate 0, and its `step` is never called."""
    make = lambda optimizer: LambdaLR(optimizer, lambda step: min(step / 10, 1.0))  # noqa: E731
    return _digits(adamw(3e-3), _scheduled(make, lambda index: not broken), 120)


@fault
def optimizer_never_stepped(broken: bool) -> Loop:
    """The loop steps the scheduler instead of the optimizer, which never steps."""

    def run(model, batches, optimizer, observe):
        scheduler = LambdaLR(optimizer, lambda step: 0.99**step)
        for _, loss in backward(model, batches, optimizer):
            if not broken:
                optimizer.step()
            scheduler.step()
            observe(loss)

    return _digits(sgd(0.1), run, 120)


@fault
def clipped_before_unscaling(broken: bool) -> Loop:
    """Gradients are clipped while they still carry the loss scale of 65536, and are then divided by it."""

    def run(model, batches, optimizer, observe):
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        for _, loss in backward(model, batches, optimizer, scaled=scaler.scale):
            if not broken:
                scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            observe(loss)

    return _digits(sgd(0.1), run)


@fault
def accumulated_loss_not_divided(broken: bool) -> Loop:
    """Gradients of 16 small batches are summed, although the rate is that of their mean."""
    model, x = mlp(10, 64, 64, 1), torch.randn(3200, 10)
    y = data.standardized(x[:, :1] * 2 + x[:, 1:2] * x[:, 2:3])

    def run(model, batches, optimizer, observe):
        optimizer.zero_grad()
        scaled = (lambda loss: loss) if broken else (lambda loss: loss / 16)
        for index, loss in backward(model, batches, optimizer, "never", F.mse_loss, scaled):
            observe(loss)
            if index % 16 == 15:
                clip_grad_norm_(model.parameters(), 50.0)
                optimizer.step()
                optimizer.zero_grad()

    batches = [(x[part], y[part]) for part in torch.randperm(3200).view(200, 16)]
    return Loop(model, batches, sgd(0.2)(model), run, finite(r_squared(model, x, y), -1.0, -1.0))


@fault
def clipped_to_almost_nothing(broken: bool) -> Loop:
    """Gradients are clipped to norm 10⁻⁴ in every step of SGD."""
    bound = 1e-4 if broken else 1.0
    return _digits(sgd(0.1), _steps("after", before=lambda model, _: clip_grad_norm_(model.parameters(), bound)))


@fault
def averaged_weights_left_in_place(broken: bool) -> Loop:
    """For validation the averaged weights are copied into the network, and the trained ones are not restored."""

    def run(model, batches, optimizer, observe):
        average = copy.deepcopy(model.state_dict())

        def validate(model, index):
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 0.001)
            if index % 10 == 9:
                trained = copy.deepcopy(model.state_dict())
                model.load_state_dict(average)
                with torch.no_grad():
                    model(batches[index][0])
                if not broken:
                    model.load_state_dict(trained)

        _steps(after=validate)(model, batches, optimizer, observe)

    return _digits(sgd(0.05), run)


@fault
def initialized_again_every_epoch(broken: bool) -> Loop:
    """The function of an epoch initializes the weights again before it trains."""

    def initialize(module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def run(model, batches, optimizer, observe):
        for start in range(0, len(batches), 12):
            if broken:
                model.apply(initialize)
            _plain(model, batches[start : start + 12], optimizer, observe)

    return digit_loop(mlp(64, 64, 64, 10).apply(initialize), adam(2e-3), run, 192)


@fault
def parameters_replaced_after_first_steps(broken: bool) -> Loop:
    """After some steps all layers are replaced by new ones, which the optimizer does not hold."""

    def run(model, batches, optimizer, observe):
        _plain(model, batches[:20], optimizer, observe)
        for name, layer in mlp(64, 64, 64, 10).named_children():
            setattr(model, name, layer)
        if not broken:
            optimizer.param_groups[0]["params"] = list(model.parameters())
        _plain(model, batches[20:], optimizer, observe)

    return _digits(sgd(0.1), run)


@fault
def eval_mode_left_on(broken: bool) -> Loop:
    """A validation at the start leaves the network in evaluation mode: batch norms keep their first statistics."""
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()]
    model = module(lambda self, x: self.head(self.layers(x)), layers=nn.Sequential(*layers), head=(64, 10))

    def run(model, batches, optimizer, observe):
        def validate(model, index):
            if index == 0:
                with torch.no_grad():
                    model.eval()(batches[index][0])
                model.train(not broken)

        _steps(after=validate)(model, batches, optimizer, observe)

    return digit_loop(model, sgd(0.1), run)


@fault
def same_batch_at_every_step(broken: bool) -> Loop:
    """`next(iter(loader))` in the loop returns the first batch at every step."""

    def run(model, batches, optimizer, observe):
        _plain(model, (next(iter(batches)) if broken else batch for batch in batches), optimizer, observe)

    return _digits(adam(3e-3), run, 200, size=16)


@fault
def batches_sorted_by_class(broken: bool) -> Loop:
    """The examples are in the order of their classes, so that every batch holds one class."""
    model = mlp(64, 64, 64, 10)
    x, y = data.digits(1024)
    order = y.argsort() if broken else torch.randperm(1024)
    batches = [(x[part].flatten(1), y[part]) for _ in range(5) for part in order.view(32, 32)]
    return Loop(model, batches, sgd(0.1)(model), _plain, digit_accuracy(model))


@fault
def one_corrupted_batch(broken: bool) -> Loop:
    """A batch of values a million times too large makes one huge gradient, from which the weights do not recover."""
    model = mlp(64, 64, 64, 10)
    batches = digit_batches(140)
    if broken:
        batches[100] = (batches[100][0] * 1e6, batches[100][1])
    return Loop(model, batches, sgd(0.05)(model), _plain, digit_accuracy(model))


@fault
def weights_clamped_after_steps(broken: bool) -> Loop:
    """After every step the weights are clamped to ±0.01, as those of a Wasserstein critic."""

    @torch.no_grad()
    def clamp(model, _):
        for parameter in model.parameters() if broken else ():
            parameter.clamp_(-0.01, 0.01)

    return _digits(adam(1e-3, torch.optim.RMSprop), _steps(after=clamp))


@fault
def optimizer_created_in_every_step(broken: bool) -> Loop:
    """Adam is created anew in every step, so that each of its steps is its first: the sign of the gradient."""
    model = mlp(6, 64, 64, 1, act=nn.Tanh)

    def run(model, batches, optimizer, observe):
        for batch in batches:
            optimizer = adam(1e-2)(model) if broken else optimizer
            _steps(loss=F.mse_loss)(model, [batch], optimizer, observe)

    return _smooth(*data.smooth_function(512), model, adam(1e-2), run)
