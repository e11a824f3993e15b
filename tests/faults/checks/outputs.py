"""Outputs that are bounded by the operations that make them, and losses that need values outside the bounds."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import checks, given, numbers
from tests.faults.training import module

X, Y = numbers()
T = numbers(48, 6, seed=2)[0]
CE, MSE, SQUASHED = F.cross_entropy, F.mse_loss, "activation_after_classifier"


def _cosine(way, scale, learned=False, factor=1.0):
    """Cosines of features and prototypes, computed in several ways."""

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


rows = {
    f"cosines_{way}": ("cosine_logits", (way, 1.0), (way, 16.0), r"'lowest_loss': 0\.516\d")  # log(1 + 5 exp(-2))
    for way in ("linear", "by_hand", "cosine_similarity", "einsum", "products")
}
rows["cosines_with_learned_scale"] = ("", ("linear", 1.0, True))
rows["cosines_scaled_in_the_loss"] = ("", ("linear", 1.0, False, 20.0))
checks(_cosine, rows)


def _ending(function, targets=Y, loss=CE):
    body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6))
    return given(module(lambda self, x: function(self.body(x)), body=body), X, targets, loss)


def _counts(outputs, targets):
    return F.poisson_nll_loss(outputs, F.one_hot(targets, 6).float(), log_input=False)


def _chosen(outputs, targets):
    return outputs.gather(1, targets[:, None])


rows = {
    "sigmoid_by_hand": (SQUASHED, lambda z: 1 / (1 + torch.exp(-z))),
    "softmax_by_hand": (SQUASHED, lambda z: (e := z.exp()) / e.sum(1, keepdim=True)),
    "softmax_of_two_exponentials": (SQUASHED, lambda z: z.exp() / z.exp().sum(1, keepdim=True)),
    "narrow_tanh": (SQUASHED, lambda z: 1.5 * torch.tanh(z), lambda z: 10 * torch.tanh(z / 10)),
    "narrow_clamp": (SQUASHED, lambda z: z.clamp(-1, 1), lambda z: z.clamp(-20, 20)),
    "relu_and_negative_targets": (SQUASHED, (F.relu, T, MSE), (F.relu, T.abs(), MSE)),
    "square_and_negative_targets": (SQUASHED, (lambda z: z**2, T, MSE)),
    "elu_and_negative_targets": (SQUASHED, (F.elu, -5 - T.abs(), MSE)),
    "sigmoid_and_large_targets": (SQUASHED, (torch.sigmoid, 50 + T, MSE), (torch.sigmoid, T.sigmoid(), MSE)),
    "tanh_and_targets_hardly_outside": ("", (torch.tanh, T.clamp(-1.05, 1.05), MSE)),
    "log_probabilities": ("", (lambda z: torch.log(torch.softmax(z, 1) + 1e-8), Y, F.nll_loss)),
    "rates_of_counts": ("", (torch.exp, Y, _counts)),
    "reward_of_probabilities": (
        *("", (lambda z: z.softmax(1), Y, lambda o, t: -(_chosen(o, t) * (t - 2)[:, None]).mean())),
    ),
    "policy_and_another_term": (
        *("", (lambda z: z.softmax(1), Y, lambda o, t: 3 - (_chosen(o, t).log() * (t[:, None] - 1)).mean())),
    ),
    "smoothed_cross_entropy": ("", (lambda z: z, Y, nn.CrossEntropyLoss(label_smoothing=0.1))),
    "margins_of_cosines": ("", (lambda z: F.normalize(z, dim=1), Y, nn.MultiMarginLoss(margin=0.3))),
}
checks(_ending, rows)
