"""Outputs that are bounded by the operations that make them, and losses that need values outside the bounds."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import check, checks, given, numbers
from tests.faults.training import module

X, Y = numbers()
T = numbers(48, 6, seed=2)[0]
SQUASHED = "activation_after_classifier"


def _cosine(way, scale, learned=False, factor=1.0):
    """Cosines of features and prototypes, computed in several ways."""
    torch.manual_seed(0)

    def forward(self, x):
        h, w = self.body(x), self.prototypes
        if way == "cosine_similarity":
            return self.scale * F.cosine_similarity(h[:, None], w[None], dim=-1)
        if way == "by_hand":
            return self.scale * (h / h.norm(dim=1, keepdim=True)) @ (w / w.norm(dim=1, keepdim=True)).T
        h, w = F.normalize(h, dim=1), F.normalize(w, dim=1)
        if way == "einsum":
            return self.scale * torch.einsum("nd,kd->nk", h, w)
        return self.scale * ((h[:, None] * w[None]).sum(-1) if way == "products" else F.linear(h, w))

    body = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))
    scale = nn.Parameter(torch.tensor(scale)) if learned else scale
    model = module(forward, body=body, prototypes=nn.Parameter(torch.randn(6, 16)), scale=scale)
    return given(model, X, Y, lambda o, t: F.cross_entropy(factor * o, t))


for way in ("linear", "by_hand", "cosine_similarity", "einsum", "products"):
    # log(1 + 5 exp(-2)) is 0.5167.
    broken, twin = (lambda way=way: _cosine(way, 1.0)), (lambda way=way: _cosine(way, 16.0))
    check(f"cosines_{way}", "cosine_logits", broken, twin, r"'lowest_loss': 0\.516\d")
check("cosines_with_learned_scale", "", lambda: _cosine("linear", 1.0, learned=True))
check("cosines_scaled_in_the_loss", "", lambda: _cosine("linear", 1.0, factor=20.0))


def _ending(function_targets_loss):
    function, targets, loss = function_targets_loss
    torch.manual_seed(0)

    def forward(self, x):
        return function(self.body(x))

    body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6))
    return given(module(forward, body=body), X, targets, loss)


CE, MSE = F.cross_entropy, F.mse_loss
checks(
    {
        "sigmoid_by_hand": (SQUASHED, (lambda z: 1 / (1 + torch.exp(-z)), Y, CE)),
        "softmax_by_hand": (SQUASHED, (lambda z: (e := z.exp()) / e.sum(1, keepdim=True), Y, CE)),
        "softmax_of_two_exponentials": (SQUASHED, (lambda z: z.exp() / z.exp().sum(1, keepdim=True), Y, CE)),
        "narrow_tanh": (SQUASHED, (lambda z: 1.5 * torch.tanh(z), Y, CE), (lambda z: 10 * torch.tanh(z / 10), Y, CE)),
        "narrow_clamp": (SQUASHED, (lambda z: z.clamp(-1, 1), Y, CE), (lambda z: z.clamp(-20, 20), Y, CE)),
        "relu_and_negative_targets": (SQUASHED, (F.relu, T, MSE), (F.relu, T.abs(), MSE)),
        "square_and_negative_targets": (SQUASHED, (lambda z: z**2, T, MSE)),
        "elu_and_negative_targets": (SQUASHED, (F.elu, -5 - T.abs(), MSE)),
        "sigmoid_and_large_targets": (SQUASHED, (torch.sigmoid, 50 + T, MSE), (torch.sigmoid, T.sigmoid(), MSE)),
        "tanh_and_targets_hardly_outside": ("", (torch.tanh, T.clamp(-1.05, 1.05), MSE)),
        "log_probabilities": ("", (lambda z: torch.log(torch.softmax(z, 1) + 1e-8), Y, F.nll_loss)),
        "rates_of_counts": (
            "",
            (torch.exp, Y, lambda o, t: F.poisson_nll_loss(o, F.one_hot(t, 6).float(), log_input=False)),
        ),
        "reward_of_probabilities": (
            "",
            (lambda z: z.softmax(1), Y, lambda o, t: -(o.gather(1, t[:, None]) * (t - 2)[:, None]).mean()),
        ),
        "policy_and_another_term": (
            "",
            (lambda z: z.softmax(1), Y, lambda o, t: 3 - (o.gather(1, t[:, None]).log() * (t[:, None] - 1)).mean()),
        ),
        "smoothed_cross_entropy": ("", (lambda z: z, Y, nn.CrossEntropyLoss(label_smoothing=0.1))),
        "margins_of_cosines": ("", (lambda z: F.normalize(z, dim=1), Y, nn.MultiMarginLoss(margin=0.3))),
    },
    _ending,
)
