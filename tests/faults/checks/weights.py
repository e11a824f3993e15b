"""Weights that keep each other from learning, and parameters that the gradient or the optimizer does not reach."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.faults.checks.rows import check, given, layers, numbers
from tests.faults.training import module

X, Y = numbers()


def _filled(fill, *places, bias=0.0):
    """Three layers, of which some are filled with a constant."""
    model = layers(12, 32, 32, 6)
    for place in places:
        nn.init.constant_(model[place].weight, fill)
        nn.init.constant_(model[place].bias, bias)
    return given(model, X, Y)


check("constant_weights", "identical_units", lambda: _filled(0.05, 0, 2, 4), lambda: _filled(0.05), r"where=\('0'")


def _adapted(head):
    """A layer with a low-rank addition, one factor zero, and a head of zeros: equal units with other gradients."""
    torch.manual_seed(0)

    def forward(self, x):
        return self.head(F.relu(self.layer(x) + self.up(self.down(x))))

    parts = {"layer": nn.Linear(12, 32), "head": nn.Linear(32, 6), "down": nn.Linear(12, 4, bias=False)}
    model = module(forward, **parts, up=nn.Linear(4, 32, bias=False))
    nn.init.zeros_(model.up.weight)
    nn.init.normal_(model.head.weight, std=0.1) if head else nn.init.zeros_(model.head.weight)
    return given(model, X, Y)


check("low_rank_addition_of_zero", "", lambda: _adapted(head=True))
check("low_rank_addition_and_head_of_zero", "", lambda: _adapted(head=False))


def _attention(residual, *zeros):
    """A class token that attends to positions, in a residual block or not."""
    torch.manual_seed(0)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), 1, 16), self.embed(x)], 1) + self.positions
        y = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.head((x + y if residual else y)[:, 0])

    parts = {name: nn.Linear(16, 16, bias=False) for name in ("query", "key", "value")}
    tokens = {"token": nn.Parameter(torch.zeros(1, 1, 16)), "positions": nn.Parameter(torch.zeros(1, 9, 16))}
    model = module(forward, **parts, embed=nn.Linear(6, 16), head=nn.Linear(16, 4), **tokens)
    for name in zeros:
        nn.init.zeros_(model.get_submodule(name).weight)
    return given(model, torch.randn(24, 8, 6), torch.arange(24) % 4)


for residual in (False, True):
    kind = "residual" if residual else "plain"
    broken, twin = lambda r=residual: _attention(r, "query", "key"), lambda r=residual: _attention(r, "head", "query")
    check(f"queries_and_keys_zero_{kind}", "zero_weights", broken, twin, "'query.weight', 'key.weight'")
    check(f"queries_zero_{kind}", "", lambda r=residual: _attention(r, "query"))


def _packed(zero):
    torch.manual_seed(0)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    model = module(forward, attention=nn.MultiheadAttention(16, 2, batch_first=True), head=nn.Linear(16, 4))
    with torch.no_grad():
        model.attention.in_proj_bias.zero_()
        model.attention.in_proj_weight[:zero] = 0
    return given(model, torch.randn(24, 8, 16), torch.arange(24) % 4)


check("packed_queries_and_keys_zero", "zero_weights", lambda: _packed(32), lambda: _packed(16))


def _scorer(bias):
    torch.manual_seed(0)

    def forward(self, x):
        return self.head(F.relu(self.hidden(x)))

    model = module(forward, hidden=nn.Linear(12, 32), head=nn.Linear(32, 6))
    if bias:
        nn.init.constant_(model.hidden.bias, bias)
    return given(model, X, Y)


check("dead_units_of_a_function", "dead_units", lambda: _scorer(-20.0), lambda: _scorer(0.0), r"where=\('hidden',\)")


def _large(bias):
    model = layers(12, 32, 32, 1)
    nn.init.constant_(model[4].bias, bias)
    return given(model, X, 5000 + 100 * X[:, :1], F.mse_loss)


check("outputs_larger_than_targets", "exploding_weights", lambda: _large(2e7), lambda: _large(5000.0))


def _read(read):
    """A linear layer whose weight is read by a function."""
    torch.manual_seed(0)

    def forward(self, x):
        return self.head(F.relu(F.linear(x, read(self.weight))))

    model = module(forward, weight=nn.Parameter(torch.randn(16, 8) / 4), head=nn.Linear(16, 3))
    return given(model, torch.randn(32, 8), torch.arange(32) % 3)


for operation, broken, twin in (
    ("data", lambda w: w.data, lambda w: w),
    ("detach", lambda w: 2 * w.detach(), lambda w: w + (w.round() - w).detach()),  # the gradient passes the rounding
):
    check(
        f"weights_read_through_{operation}",
        "detached",
        lambda f=broken: _read(f),
        lambda f=twin: _read(f),
        rf"'parameters': 1, 'operation': '{operation}'.*where=\('weight',\)",
    )


def _hard(logits):
    return F.one_hot(logits.argmax(1), 6).float()


def _code(choose):
    """An embedding of a code that layers choose."""
    torch.manual_seed(0)

    def forward(self, x):
        return self.head(choose(self.encoder(x)) @ self.codes)

    encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))
    model = module(forward, encoder=encoder, codes=nn.Parameter(torch.randn(6, 16)), head=nn.Linear(16, 3))
    return given(model, torch.randn(64, 8), torch.arange(64) % 3)


ENCODER = r"where=\('encoder\.0\.weight', 'encoder\.0\.bias'"
check(
    "choice_by_argmax",
    "detached",
    lambda: _code(_hard),
    lambda: _code(lambda z: _hard(z) + z.softmax(1) - z.softmax(1).detach()),
    ENCODER,
)
check("choice_by_sign", "detached", lambda: _code(lambda z: (z > 0).float()), lambda: _code(lambda z: z.softmax(1)))


def _head(how):
    """A head that is created in every pass, kept in a list, or registered."""
    torch.manual_seed(0)

    def forward(self, x):
        head = nn.Linear(16, 3) if how == "created" else self.heads[0]
        return head(F.relu(self.first(x)))

    model = module(forward, first=nn.Linear(8, 16), heads=[nn.Linear(16, 3)])
    if how == "registered":
        model.head = model.heads[0]
    return given(model, torch.randn(32, 8), torch.arange(32) % 3)


check(
    "head_created_in_forward",
    "unregistered_modules",
    lambda: _head("created"),
    lambda: _head("registered"),
    "in __init__",
)
check("head_in_a_list", "unregistered_modules", lambda: _head("listed"), says="nn.ModuleList")


def _detached(every):
    """A state that is detached at every step, or at some."""
    torch.manual_seed(0)

    def forward(self, x):
        state = x.new_zeros(len(x), 16)
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)
            if (time + 1) % every == 0:
                state = state.detach() if time + 1 < x.shape[1] else state
        return self.last(state)

    model = module(forward, cell=nn.GRUCell(3, 16), last=nn.Linear(16, 4))
    return given(model, torch.randn(16, 8, 3), torch.arange(16) % 4)


check("state_detached_at_every_step", "detached", lambda: _detached(1), lambda: _detached(5), "'steps': 7")


KEPT = []  # optimizers of parts that a row does not train itself


def _adversarial(step, trains, has_other=False):
    """A generator and its critic; one step trains one of them."""
    torch.manual_seed(0)

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


check(
    "critic_that_no_optimizer_holds",
    "untrained_parameters",
    lambda: _adversarial("generator", "generator"),
    lambda: _adversarial("generator", "generator", has_other=True),
)
check(
    "generator_under_no_grad",
    "no_grad",
    lambda: _adversarial("critic", ""),
    lambda: _adversarial("critic", "critic"),
)


def _averaged(is_copy):
    """A network beside a frozen one in training mode: an average of it, or another one."""
    torch.manual_seed(0)

    def forward(self, x):
        return self.online(x), self.target(0.5 * x).detach()

    online, other = (
        nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))
        for width in (16, 12)
    )
    model = module(forward, online=online, target=(deepcopy(online) if is_copy else other).requires_grad_(False))
    x = torch.randn(64, 8)
    return given(model, x, x, lambda made, _: F.mse_loss(*made), Adam(online.parameters(), 1e-3))


check("norms_of_another_frozen_network", "moving_frozen_norms", lambda: _averaged(False), lambda: _averaged(True))


def _replaced(change, afterwards=False):
    """Parameters that were replaced after their optimizer was made."""
    model = layers(6, 32, 3)
    optimizer = Adam(model.parameters(), 1e-2)
    change(model)
    batch = numbers(32, 6, 3)
    return given(model, *batch, optimizer=Adam(model.parameters(), 1e-2) if afterwards else optimizer, trial_steps=5)


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
    check(
        f"optimizer_of{change.__name__}_tensors",
        "untrained_parameters",
        lambda change=change: _replaced(change),
        lambda change=change: _replaced(change, afterwards=True),
        f"same shapes.*'parameters': {count}",
    )


def _listed_twice(repeated):
    model = layers(6, 32, 3)
    optimizer = SGD([{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}], 0.1)
    if repeated:
        optimizer.param_groups[1]["params"].append(model[0].weight)
    return given(model, *numbers(32, 6, 3), optimizer=optimizer)


check(
    "parameter_in_two_groups",
    "repeated_parameters",
    lambda: _listed_twice(True),
    lambda: _listed_twice(False),
    r"where=\('0.weight',\)",
)
