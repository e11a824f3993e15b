"""Faults of the steps of a loop: clipping, sums of passes, scalers, optimizers; beside loops that are right."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam

from tests.faults.checks.loops import batch, check, simple, step_by_hand


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
        step_by_hand((weight, bias))


def _summed(divisor=1, rate=1.0):
    def run(model, loss):
        optimizer = SGD(model.parameters(), lr=rate, momentum=0.9)
        for _ in range(60):
            for _ in range(8):
                (loss() / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def _micro_batches(size, often=True):
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


def _adversarial(model, loss):
    """Look for inputs of a high loss by four passes whose gradients of the weights are thrown away."""
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(20):
        x, y = batch()
        for _ in range(4):
            x = x.detach().requires_grad_()
            F.cross_entropy(model(x), y).backward()
            x = x + 0.01 * x.grad.sign()
            model.zero_grad()
        F.cross_entropy(model(x.detach()), y).backward()
        optimizer.step()


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


def _frozen(is_frozen, training=True):
    """Norms of a body that is frozen, in training mode or in evaluation."""
    body = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU()).requires_grad_(not is_frozen)
    return nn.Sequential(body.train(training), nn.Linear(32, 3))


check("clipped_after_the_step", "clipped_late", _clipping(late=True), _clipping())
check("clipped_before_and_after_the_step", "", _clipping(twice=True))
check("clipped_late_at_a_large_bound", "", _clipping(late=True, bound=100.0))
check("clipped_while_scaled", "clipped_tiny", _clipping(scale=65536.0), _clipping(scale=65536.0, bound=1e4))
check("replaced_head_of_a_loop", "untrained_parameters", _replaced, _by_two)
check("head_stepped_by_hand", "", _head_by_hand)
check("passes_that_are_summed", "summed_passes", _summed(), _summed(divisor=8))
check("summed_passes_at_a_small_rate", "", _summed(rate=0.01))
check("three_micro_batches", "cleared_gradients", _micro_batches(3), _micro_batches(1))
check("four_micro_batches", "cleared_gradients", _micro_batches(4), _micro_batches(4, often=False))
check("adversarial_inputs", "", _adversarial)
check("adam_made_in_every_epoch", "lost_state", _epochs(True), _epochs(False))
check("loss_that_stays_scaled", "never_unscaled", _scaler(False), _scaler(True))
wrong, right, plain = lambda: _frozen(True), lambda: _frozen(True, training=False), simple(steps=65)
check("frozen_norms_of_a_loop", "moving_frozen_norms", plain, plain, wrong, right)
check("trained_norms_of_a_loop", "", plain, model=lambda: _frozen(False))
