"""Weights that keep each other from learning, values that are not finite, and parameters that are not reached."""

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


def _unit(x):
    return x / x.norm(dim=1, keepdim=True)


def _powers(x):
    return x.exp() / x.exp().sum(1, keepdim=True)


def _rooted(x):
    return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))


def _scaled(x):
    return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-3)


def _smooth(x):
    return x / (x.square().sum(1, keepdim=True) + 1e-3).sqrt()


def _finite(function, half=False):
    """A function between two layers; an example is zero."""
    torch.manual_seed(0)
    part = module(lambda self, x: function(x))
    model = nn.Sequential(nn.Linear(4, 6, bias=False), part, nn.Linear(6, 2))
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    x[3] = 0
    if half:
        model, x, y = model.half(), x.half(), y.half()
        nn.init.normal_(model[0].weight, std=50)
    return given(model, x, y, F.mse_loss)


for name, broken, line in (
    ("zero_by_zero", lambda: _finite(_unit), r"div.*'value': 'NaN'"),
    ("overflow_of_float16", lambda: _finite(_powers, half=True), r"div.*'value': 'NaN'"),
    ("root_and_where", lambda: _finite(_rooted), "'what': 'gradient'.*'operation': 'sqrt'"),
    ("epsilon_outside_of_a_root", lambda: _finite(_scaled), "'what': 'gradient'.*'operation': 'sqrt'"),
):
    check(name, "not_finite", broken, says=line)
check("epsilon_inside_of_a_root", "", lambda: _finite(_smooth))


def _masked(length):
    torch.manual_seed(0)

    def forward(self, x):
        logits = self.project(x) @ x.transpose(1, 2)
        hidden = torch.arange(x.shape[1]) >= length
        return torch.softmax(logits.masked_fill(hidden, float("-inf")), -1) @ x

    model = nn.Sequential(nn.Linear(8, 8), module(forward, project=nn.Linear(8, 8)))
    return given(model, torch.randn(4, 5, 8), torch.randn(4, 5, 8), F.mse_loss)


check("rows_that_are_fully_masked", "not_finite", lambda: _masked(0), lambda: _masked(3), "softmax.*masked_fill")


def _angle():
    """∂ arccos(c)/∂c is infinite at c = 1, where an output has the direction of its target."""
    model, x = nn.Linear(4, 4, bias=False), torch.eye(4).repeat(2, 1)
    nn.init.eye_(model.weight)
    return given(model, x, x, lambda o, t: torch.acos((o * t).sum(1)).mean())


check("angle_in_the_loss", "not_finite", _angle, says=r"'operation': 'acos'")


def _state(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    model.state_dict()[name].fill_(float("nan"))
    return given(model, torch.randn(16, 3, 8, 8), torch.arange(16) % 3)


check("statistics_of_nan", "not_finite_state", lambda: _state("1.running_var"), says="evaluation.*1.running_var")
check("weights_of_nan", "not_finite_state", lambda: _state("4.weight"), says="4.weight")


def _missing(leaves_out):
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    y[5, 1] = float("nan")

    def known_only(outputs, targets):
        known = targets.isfinite()
        return F.mse_loss(outputs[known], targets[known])

    return given(nn.Linear(4, 2), x, y, known_only if leaves_out else F.mse_loss)


NOT_FINITE = ("not_finite_targets", "not_finite", "not_finite_inputs")
check("missing_targets", NOT_FINITE, lambda: _missing(False), lambda: _missing(True), "'values': 1, 'example': 5")


def _ctc(outputs, targets):
    steps = outputs.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(steps, targets, torch.full((4,), 3), torch.full((4,), 6))


check(
    "text_longer_than_its_sound",
    "not_finite",
    lambda: given(nn.Linear(8, 5), torch.randn(4, 3, 8), torch.randint(1, 5, (4, 6)), _ctc),
    says="'operation': 'ctc_loss'.*'value': 'infinite'",
)
for index in (-100, 0, 255):
    check(
        f"all_labels_ignored_{abs(index)}",
        "ignored_labels",
        lambda i=index: given(
            nn.Linear(4, 5), torch.randn(9, 4), torch.full((9,), i), nn.CrossEntropyLoss(ignore_index=i)
        ),
        says="'labels': 9",
    )


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
