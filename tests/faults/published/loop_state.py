"""Faults that only the loop shows: weights overwritten, modes left on, stale optimizers, repeated or odd batches."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Loop, fault
from tests.faults.networks import digit_net
from tests.faults.training import adam, backward, digit_accuracy, digit_batches, digit_loop, module, r_squared, sgd


def _plain(model, batches, optimizer, observe):
    for _, loss in backward(model, batches, optimizer):
        optimizer.step()
        observe(loss)


@fault
def averaged_weights_left_in_place(broken: bool) -> Loop:
    """For validation the averaged weights are copied into the network, and the trained ones are not restored."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        average = copy.deepcopy(model.state_dict())
        for index, loss in backward(model, batches, optimizer):
            optimizer.step()
            observe(loss)
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 0.001)
            if index % 10 == 9:
                trained = copy.deepcopy(model.state_dict())
                model.load_state_dict(average)
                with torch.no_grad():
                    model(batches[index][0])  # validation
                if not broken:
                    model.load_state_dict(trained)

    return digit_loop(model, sgd(0.05), run)


@fault
def initialized_again_every_epoch(broken: bool) -> Loop:
    """The function of an epoch initializes the weights again before it trains."""

    def initialize(module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    model = digit_net()
    model.apply(initialize)

    def run(model, batches, optimizer, observe):
        for start in range(0, len(batches), 12):
            if broken:
                model.apply(initialize)
            _plain(model, batches[start : start + 12], optimizer, observe)

    return digit_loop(model, adam(2e-3), run, 192)


@fault
def parameters_replaced_after_first_steps(broken: bool) -> Loop:
    """After some steps all layers are replaced by new ones, which the optimizer does not hold."""
    model = digit_net()

    def run(model, batches, optimizer, observe):
        _plain(model, batches[:20], optimizer, observe)
        for name, layer in digit_net().named_children():
            setattr(model, name, layer)
        if not broken:
            optimizer.param_groups[0]["params"] = list(model.parameters())
        _plain(model, batches[20:], optimizer, observe)

    return digit_loop(model, sgd(0.1), run)


@fault
def eval_mode_left_on(broken: bool) -> Loop:
    """A validation at the start leaves the network in evaluation mode: batch norms keep their first statistics."""
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()]

    def forward(self, x):
        return self.head(self.layers(x))

    model = module(forward, layers=nn.Sequential(*layers), head=nn.Linear(64, 10))

    def run(model, batches, optimizer, observe):
        for index, loss in backward(model, batches, optimizer):
            optimizer.step()
            observe(loss)
            if index == 0:
                model.eval()
                with torch.no_grad():
                    model(batches[index][0])
                if not broken:
                    model.train()

    return digit_loop(model, sgd(0.1), run)


@fault
def same_batch_at_every_step(broken: bool) -> Loop:
    """`next(iter(loader))` in the loop returns the first batch at every step."""

    def run(model, batches, optimizer, observe):
        _plain(model, (next(iter(batches)) if broken else batch for batch in batches), optimizer, observe)

    return digit_loop(digit_net(), adam(3e-3), run, 200, size=16)


@fault
def batches_sorted_by_class(broken: bool) -> Loop:
    """The examples are in the order of their classes, so that every batch holds one class."""
    model = digit_net()
    x, y = data.digits(1024)
    order = y.argsort() if broken else torch.randperm(1024)
    batches = [(x[part].flatten(1), y[part]) for _ in range(5) for part in order.view(32, 32)]
    return Loop(model, batches, sgd(0.1)(model), _plain, digit_accuracy(model))


@fault
def one_corrupted_batch(broken: bool) -> Loop:
    """A batch of values a million times too large makes one huge gradient, from which the weights do not recover."""
    model = digit_net()
    batches = digit_batches(140)
    if broken:
        batches[100] = (batches[100][0] * 1e6, batches[100][1])
    return Loop(model, batches, sgd(0.05)(model), _plain, digit_accuracy(model))


@fault
def weights_clamped_after_steps(broken: bool) -> Loop:
    """After every step the weights are clamped to ±0.01, as those of a Wasserstein critic."""

    def run(model, batches, optimizer, observe):
        for _, loss in backward(model, batches, optimizer):
            optimizer.step()
            observe(loss)
            if broken:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.clamp_(-0.01, 0.01)

    return digit_loop(digit_net(), adam(1e-3, torch.optim.RMSprop), run)


@fault
def optimizer_created_in_every_step(broken: bool) -> Loop:
    """Adam is created anew in every step, so that each of its steps is its first: the sign of the gradient."""
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    x, y = data.smooth_function(512)

    def run(model, batches, optimizer, observe):
        for batch in batches:
            if broken:
                optimizer = adam(1e-2)(model)
            for _, loss in backward(model, [batch], optimizer, loss=F.mse_loss):
                optimizer.step()
                observe(loss)

    batches = [(x[part], y[part]) for _ in range(50) for part in torch.randperm(512).view(4, 128)]
    return Loop(model, batches, adam(1e-2)(model), run, r_squared(model, x, y))
