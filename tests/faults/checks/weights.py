"""Weights that keep each other from learning, and parameters that the gradient or the optimizer does not reach."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.faults.checks.rows import adam, checks, given, layers, numbers
from tests.faults.training import module

X, Y = numbers()


def _adapted(head):
    """A layer with a low-rank addition, one factor zero, and a head of zeros: equal units with other gradients."""
    parts = {"layer": nn.Linear(12, 32), "head": nn.Linear(32, 6), "down": nn.Linear(12, 4, bias=False)}
    forward = lambda self, x: self.head(F.relu(self.layer(x) + self.up(self.down(x))))  # noqa: E731
    model = module(forward, **parts, up=nn.Linear(4, 32, bias=False))
    nn.init.zeros_(model.up.weight)
    nn.init.normal_(model.head.weight, std=0.1) if head else nn.init.zeros_(model.head.weight)
    return given(model, X, Y)


checks(_adapted, {"low_rank_addition_of_zero": ("", True), "low_rank_addition_and_head_of_zero": ("", False)})


def _attention(*zeros):
    """A class token that attends to positions in a residual block."""

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), 1, 16), self.embed(x)], 1) + self.positions
        y = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.head((x + y)[:, 0])

    parts = {name: nn.Linear(16, 16, bias=False) for name in ("query", "key", "value")}
    tokens = {"token": nn.Parameter(torch.zeros(1, 1, 16)), "positions": nn.Parameter(torch.zeros(1, 9, 16))}
    model = module(forward, **parts, embed=(6, 16), head=(16, 4), **tokens)
    for name in zeros:
        nn.init.zeros_(model.get_submodule(name).weight)
    return given(model, torch.randn(24, 8, 6), torch.arange(24) % 4)


rows = {
    "queries_and_keys_zero_residual": (
        *("zero_weights", ("query", "key"), ("head", "query")),
        "'query.weight', 'key.weight'",
    ),
    "queries_zero_residual": ("", ("query",)),
}
checks(_attention, rows)


def _packed(zero):
    forward = lambda self, x: self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))  # noqa: E731
    model = module(forward, attention=nn.MultiheadAttention(16, 2, batch_first=True), head=(16, 4))
    with torch.no_grad():
        model.attention.in_proj_bias.zero_()
        model.attention.in_proj_weight[:zero] = 0
    return given(model, torch.randn(24, 8, 16), torch.arange(24) % 4)


def _large(bias):
    model = layers(12, 32, 32, 1)
    nn.init.constant_(model[4].bias, bias)
    return given(model, X, 5000 + 100 * X[:, :1], F.mse_loss)


checks(_packed, {"packed_queries_and_keys_zero": ("zero_weights", 32, 16)})
checks(_large, {"outputs_larger_than_targets": ("exploding_weights", 2e7, 5000.0)})


def _read(read):
    """A linear layer whose weight is read by a function."""
    weight = nn.Parameter(torch.randn(16, 8) / 4)
    model = module(lambda self, x: self.head(F.relu(F.linear(x, read(self.weight)))), weight=weight, head=(16, 3))
    return given(model, torch.randn(32, 8), torch.arange(32) % 3)


for operation, wrong, right in (
    ("data", lambda w: w.data, lambda w: w),
    ("detach", lambda w: 2 * w.detach(), lambda w: w + (w.round() - w).detach()),  # the gradient passes the rounding
):
    says = rf"'parameters': 1, 'operation': '{operation}'.*where=\('weight',\)"
    checks(_read, {f"weights_read_through_{operation}": ("detached", wrong, right)}, says)


def _hard(logits):
    return F.one_hot(logits.argmax(1), 6).float()


def _code(choose):
    """An embedding of a code that layers choose."""
    encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))
    forward = lambda self, x: self.head(choose(self.encoder(x)) @ self.codes)  # noqa: E731
    model = module(forward, encoder=encoder, codes=nn.Parameter(torch.randn(6, 16)), head=(16, 3))
    return given(model, torch.randn(64, 8), torch.arange(64) % 3)


rows = {
    "choice_by_argmax": (
        *("detached", _hard, lambda z: _hard(z) + z.softmax(1) - z.softmax(1).detach()),
        r"where=\('encoder\.0\.weight', 'encoder\.0\.bias'",
    ),
    "choice_by_sign": ("detached", lambda z: (z > 0).float(), lambda z: z.softmax(1)),
}
checks(_code, rows)


def _detached(every):
    """A state that is detached at every step, or at some."""

    def forward(self, x):
        state = x.new_zeros(len(x), 16)
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)
            if (time + 1) % every == 0:
                state = state.detach() if time + 1 < x.shape[1] else state
        return self.last(state)

    model = module(forward, cell=nn.GRUCell(3, 16), last=(16, 4))
    return given(model, torch.randn(16, 8, 3), torch.arange(16) % 4)


checks(_detached, {"state_detached_at_every_step": ("detached", 1, 5, "'steps': 7")})
KEPT = []  # optimizers of parts that a row does not train itself


def _adversarial(step, trains, has_other=False):
    """A generator and its critic; one step trains one of them."""

    def forward(self, noise, real):
        if step == "generator":
            return self.critic(self.generator(noise))
        with torch.no_grad():
            made = self.generator(noise)
        return self.critic(torch.cat([real, made]))

    parts = {
        name: nn.Sequential(nn.Linear(before, 32), nn.ReLU(), nn.Linear(32, after))
        for name, before, after in (("generator", 4, 8), ("critic", 8, 1))
    }
    model = module(forward, **parts)
    KEPT[:] = [Adam(model.critic.parameters(), 1e-3)] if has_other else []
    optimizer = Adam((getattr(model, trains) if trains else model).parameters(), 1e-3)
    ones = torch.ones(64, 1)
    y = ones if step == "generator" else torch.cat([ones, 0 * ones])
    return given(model, (torch.randn(64, 4), torch.randn(64, 8)), y, F.binary_cross_entropy_with_logits, optimizer)


wrong, right = ("generator", "generator"), ("generator", "generator", True)
rows = {
    "critic_that_no_optimizer_holds": ("untrained_parameters", wrong, right),
    "generator_under_no_grad": ("no_grad", ("critic", ""), ("critic", "critic")),
}
checks(_adversarial, rows)


def _averaged(is_copy):
    """A network beside a frozen one in training mode: an average of it, or another one."""
    online, other = (
        nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))
        for width in (16, 12)
    )
    target = (deepcopy(online) if is_copy else other).requires_grad_(False)
    model = module(lambda self, x: (self.online(x), self.target(0.5 * x).detach()), online=online, target=target)
    x = torch.randn(64, 8)
    return given(model, x, x, lambda made, _: F.mse_loss(*made), Adam(online.parameters(), 1e-3))


checks(_averaged, {"norms_of_another_frozen_network": ("moving_frozen_norms", False, True)})


def _replaced(change, afterwards=False):
    """Parameters that were replaced after their optimizer was made."""
    model = layers(6, 32, 3)
    optimizer = Adam(model.parameters(), 1e-2)
    change(model)
    return given(model, *numbers(32, 6, 3), optimizer=adam() if afterwards else optimizer, trial_steps=5)


def _new_head(model):
    model[2] = nn.Linear(32, 3)


def _reset(model):
    for place in (0, 2):
        model[place] = nn.Linear(model[place].in_features, model[place].out_features)


def _emptied(model):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to(torch.float64).to(torch.float32)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


for change, count in ((_new_head, 2), (_reset, 4), (_emptied, 4)):
    says = f"same shapes.*'parameters': {count}"
    row = {f"optimizer_of{change.__name__}_tensors": ("untrained_parameters", change, (change, True), says)}
    checks(_replaced, row)


def _listed_twice(repeated):
    model = layers(6, 32, 3)
    optimizer = SGD([{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}], 0.1)
    if repeated:
        optimizer.param_groups[1]["params"].append(model[0].weight)
    return given(model, *numbers(32, 6, 3), optimizer=optimizer)


checks(_listed_twice, {"parameter_in_two_groups": ("repeated_parameters", True, False, r"where=\('0.weight',\)")})


def _copied_values(model):
    model.head.weight.data = model.embed.weight.data.clone()


def _wrapped(model):
    model.head.weight = nn.Parameter(model.embed.weight)


def _one_parameter(model):
    model.head.weight = model.embed.weight


def _frozen_table(model):
    _copied_values(model)
    model.embed.weight.requires_grad_(False)


def _predicting(tie):
    """The token after each, with a head that is tied to the embedding or not."""

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0]).transpose(1, 2)

    torch.manual_seed(0)
    parts = {"embed": nn.Embedding(30, 16), "rnn": nn.GRU(16, 16, batch_first=True), "head": nn.Linear(16, 30)}
    model = module(forward, **parts)
    tie(model)
    tokens = torch.randint(30, (32, 9), generator=torch.Generator().manual_seed(0))
    return given(model, tokens[:, :-1], tokens[:, 1:])


def _autoencoder(form):
    """A decoder with the transposed weight of the encoder: its memory, its parameter, or its first values only."""
    model = layers(12, 12 if form == "copies" else 4, 12, act=nn.Tanh)
    if form in ("memory", "start"):
        weight = model[0].weight.data.t()
        model[2].weight.data = weight if form == "memory" else weight.clone()
    elif form == "copies":
        model[2].load_state_dict(model[0].state_dict())
    else:
        model = module(lambda self, x: F.linear(self.encoder(x).tanh(), self.encoder.weight.t()), encoder=model[0])
    return given(model, X, X, F.mse_loss)


rows = {
    "head_with_the_values_of_the_embedding": ("untied_weights", _copied_values, _one_parameter, "two tensors"),
    "embedding_wrapped_in_a_parameter": ("untied_weights", _wrapped, _one_parameter, "same memory"),
    "values_of_a_frozen_table": ("", _frozen_table),
}
checks(_predicting, rows)
rows = {
    "memory_of_a_transposed_encoder": ("untied_weights", "memory", "parameter", "transposed"),
    "decoder_that_begins_as_the_encoder": ("", "start"),
    "layers_that_begin_as_copies": ("", "copies"),
}
checks(_autoencoder, rows)
