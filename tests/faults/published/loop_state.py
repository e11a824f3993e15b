"""Faults that only the loop shows: weights overwritten, modes left on, stale optimizers, repeated or odd batches."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Loop, fault
from tests.faults.networks import digit_net
from tests.faults.sources import remembered, thread, traincheck
from tests.faults.training import adam, backward, digit_accuracy, digit_batches, digit_loop, module, r_squared, sgd
from tests.faults.truth import NOT_FINITE, NOT_FITTED, both

_OVERWRITTEN = (
    r"overwrit\w*|outside|reset\w*|re-?initiali[sz]\w*|replaced|copied|restored|changed (between|"
    r"without|other)|between (the )?steps|not by the optimizer|revert\w*|went back|jump\w*"
)


def _plain(model, batches, optimizer, observe):
    for _, loss in backward(model, batches, optimizer):
        optimizer.step()
        observe(loss)


@fault(
    "loop",
    thread(
        "Missed to restore model weights in training after validation with EMA on",
        "https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186",
    ),
    both(r"weights?|parameters?|model|ema\b|average", _OVERWRITTEN),
    NOT_FITTED + "|jump|spike|rises",
    bars=(0.8, 0.6),
)
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


@fault(
    "loop",
    traincheck(
        "transformers-17877: initialization is invoked repeatedly",
        "https://github.com/huggingface/transformers/pull/17877",
    ),
    both(
        r"weights?|parameters?|model|initiali[sz]\w*",
        _OVERWRITTEN + r"|initiali[sz]\w*.{0,30}(again|anew|repeatedly|every)",
    ),
    NOT_FITTED + "|jump|spike|rises",
    bars=(0.8, 0.6),
)
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


@fault(
    "loop",
    traincheck("success story 2: gradients are computed and never applied", "https://orderlab.io/TrainCheck"),
    both(
        r"optimizer|stale|replaced",
        r"stale|\bold\b|replaced|not (in|held|part of)|does not (hold|contain|update|own)|"
        r"other (model|parameters)|new (head|layers?|parameters|ones)|no longer|never updates",
    ),
    bars=(0.8, 0.6),
)
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


@fault(
    "loop",
    thread("Finish validation without running model.train()", "https://github.com/fartashf/vsepp/issues/4"),
    both(
        r"\beval\b|eval\(|evaluation|train\(\)|\bmode\b",
        r"\bmode\b|\bleft\b|back to train|statistics|train\(\)|still",
    ),
    NOT_FITTED + "|" + NOT_FINITE + "|statistics|rises|spike",
    bars=(0.8, 0.6),
)
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


@fault(
    "loop",
    traincheck(
        "stackoverflow-67180955: workers return identical data",
        "https://tanelp.github.io/posts/a-bug-that-plagues-thousands-of-open-source-ml-projects/",
    ),
    both(
        r"batch\w*|data|examples?|inputs?", r"same|identical|repeat\w*|duplicate\w*|again|never changes|first batch"
    ),
    r"overfit\w*|memori[sz]\w*|generali[sz]\w*|too (fast|easy)|zero",
    bars=(0.8, 0.6),
)
def same_batch_at_every_step(broken: bool) -> Loop:
    """`next(iter(loader))` in the loop returns the first batch at every step."""

    def run(model, batches, optimizer, observe):
        _plain(model, (next(iter(batches)) if broken else batch for batch in batches), optimizer, observe)

    return digit_loop(digit_net(), adam(3e-3), run, 200, size=16)


@fault(
    "loop",
    remembered("DataLoader without shuffle over files sorted by class"),
    both(
        r"shuffl\w*|sorted|one class|single class|class(es)?|label\w*|order",
        r"shuffl\w*|sorted|one class|single|same label|each batch|per batch|order",
    ),
    NOT_FITTED + "|spike|oscillat|forget|jump",
    bars=(0.8, 0.5),
)
def batches_sorted_by_class(broken: bool) -> Loop:
    """The examples are in the order of their classes, so that every batch holds one class."""
    model = digit_net()
    x, y = data.digits(1024)
    order = y.argsort() if broken else torch.randperm(1024)
    batches = [(x[part].flatten(1), y[part]) for _ in range(5) for part in order.view(32, 32)]
    return Loop(model, batches, sgd(0.1)(model), _plain, digit_accuracy(model))


@fault(
    "loop",
    remembered("one corrupted batch: a spike of Adam's update that the weights do not recover from"),
    both(
        r"spike\w*|outlier\w*|one (step|batch)|single (step|batch)|suddenly|jump\w*|large (gradient|"
        r"update|batch|input)|step 100|million",
        r"gradient|update|norm|batch|inputs?|loss",
    ),
    "rises|diverg|" + NOT_FINITE,
    bars=(0.8, 0.65),
)
def one_corrupted_batch(broken: bool) -> Loop:
    """A batch of values a million times too large makes one huge gradient, from which the weights do not recover."""
    model = digit_net()
    batches = digit_batches(140)
    if broken:
        batches[100] = (batches[100][0] * 1e6, batches[100][1])
    return Loop(model, batches, sgd(0.05)(model), _plain, digit_accuracy(model))


@fault(
    "loop",
    remembered("weight clipping of WGAN examples, applied to a network that is no critic"),
    both(r"weights?|parameters?", r"clamp\w*|clip\w*|bounded|limit\w*|within|0\.01|" + _OVERWRITTEN),
    NOT_FITTED + "|small|vanish",
    bars=(0.8, 0.6),
)
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


@fault(
    "loop",
    remembered("a new optimizer in every step"),
    both(
        r"optimizer|momentum|state|adam",
        r"\bnew\b|anew|recreat\w*|creat\w*|reset\w*|lost|never (builds|accumulates)|several optimizers|first step",
    ),
    NOT_FITTED + "|slow|oscillat|noisy|rate",
    bars=(0.95, 0.9),
)
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
