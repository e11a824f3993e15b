"""Faults that only the loop shows: gradients, rates and steps."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from tests.faults import data
from tests.faults.catalogue import Loop, fault
from tests.faults.networks import digit_net
from tests.faults.training import accuracy, adam, adamw, backward, digit_loop, finite, module, r_squared, sgd


@fault
def zero_grad_missing(broken: bool) -> Loop:
    """Gradients are never set to zero, and every step follows the sum of all so far."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        for _, loss in backward(model, batches, optimizer, zero="never" if broken else "before"):
            optimizer.step()
            observe(loss)

    return digit_loop(model, sgd(0.1, 0.0), run, 200)


@fault
def zero_grad_between_backward_and_step(broken: bool) -> Loop:
    """Gradients are set to zero after they are computed and before they are used."""

    def forward(self, x):
        return self.classifier(self.gru(x)[1][-1])

    model = module(forward, gru=nn.GRU(1, 24, batch_first=True), classifier=nn.Linear(24, 2))

    def run(model, batches, optimizer, observe):
        for _, loss in backward(model, batches, optimizer, zero="never" if broken else "before"):
            if broken:
                optimizer.zero_grad()
            optimizer.step()
            observe(loss)

    batches = [data.waves(32, 24) for _ in range(120)]
    return Loop(model, batches, adam(1e-2)(model), run, accuracy(model, *data.waves(128, 24)))


@fault
def step_schedule_per_batch(broken: bool) -> Loop:
    """A schedule that is to divide the rate by ten after 5 epochs is stepped per batch."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        scheduler = StepLR(optimizer, step_size=5, gamma=0.1)
        for index, loss in backward(model, batches, optimizer):
            optimizer.step()
            observe(loss)
            if broken or index % 32 == 31:
                scheduler.step()

    return digit_loop(model, sgd(0.1), run)


@fault
def cosine_schedule_of_too_few_steps(broken: bool) -> Loop:
    """A cosine schedule of 12 epochs is stepped per batch: the rate is 0 after 12 batches."""
    x, y = data.smooth_function(512)
    model = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def run(model, batches, optimizer, observe):
        length = 12 if broken else len(batches)
        scheduler = CosineAnnealingLR(optimizer, T_max=length)
        for index, loss in backward(model, batches, optimizer, "after", F.mse_loss):
            optimizer.step()
            observe(loss)
            if index < length:
                scheduler.step()

    batches = [(x[part], y[part]) for _ in range(50) for part in torch.randperm(512).view(4, 128)]
    return Loop(model, batches, adamw(1e-2)(model), run, r_squared(model, x, y))


@fault
def warm_up_never_stepped(broken: bool) -> Loop:
    """A linear warm-up starts at rate 0, and its `step` is never called."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        scheduler = LambdaLR(optimizer, lambda step: min(step / 10, 1.0))
        for _, loss in backward(model, batches, optimizer):
            optimizer.step()
            observe(loss)
            if not broken:
                scheduler.step()

    return digit_loop(model, adamw(3e-3), run, 120)


@fault
def optimizer_never_stepped(broken: bool) -> Loop:
    """The loop steps the scheduler instead of the optimizer, which never steps."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        scheduler = LambdaLR(optimizer, lambda step: 0.99**step)
        for _, loss in backward(model, batches, optimizer):
            if not broken:
                optimizer.step()
            scheduler.step()
            observe(loss)

    return digit_loop(model, sgd(0.1), run, 120)


@fault
def clipped_before_unscaling(broken: bool) -> Loop:
    """Gradients are clipped while they still carry the loss scale of 65536, and are then divided by it."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        for _, loss in backward(model, batches, optimizer, scaled=scaler.scale):
            if not broken:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            observe(loss)

    return digit_loop(model, sgd(0.1), run)


@fault
def accumulated_loss_not_divided(broken: bool) -> Loop:
    """Gradients of 16 small batches are summed, although the rate is that of their mean."""
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    x = torch.randn(3200, 10)
    y = data.standardized(x[:, :1] * 2 + x[:, 1:2] * x[:, 2:3])

    def run(model, batches, optimizer, observe):
        optimizer.zero_grad()
        scaled = (lambda loss: loss) if broken else (lambda loss: loss / 16)
        for index, loss in backward(model, batches, optimizer, "never", F.mse_loss, scaled):
            observe(loss)
            if index % 16 == 15:
                nn.utils.clip_grad_norm_(model.parameters(), 50.0)
                optimizer.step()
                optimizer.zero_grad()

    batches = [(x[part], y[part]) for part in torch.randperm(3200).view(200, 16)]
    return Loop(model, batches, sgd(0.2)(model), run, finite(r_squared(model, x, y), -1.0, -1.0))


@fault
def clipped_to_almost_nothing(broken: bool) -> Loop:
    """Gradients are clipped to norm 10⁻⁴ in every step of SGD."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        for _, loss in backward(model, batches, optimizer, "after"):
            nn.utils.clip_grad_norm_(model.parameters(), 1e-4 if broken else 1.0)
            optimizer.step()
            observe(loss)

    return digit_loop(model, sgd(0.1), run)
