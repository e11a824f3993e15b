"""Losses that do not use which output belongs to which target, and batches of which nothing holds for others."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from tests.faults.catalogue import Training
from tests.faults.checks.rows import adam, check, checks, given, layers, numbers

N, K = 64, 4
X, ACTIONS = numbers(N, 8, K)
REWARDS = X[:, 0].tanh() + 0.3 * X[:, 1]
TEACHER = 3 * torch.tanh(X @ X[:8, :K])


def _values(select):
    def loss(outputs, targets):
        actions, rewards = targets
        return ((select(outputs, actions) - rewards) ** 2).mean()

    return given(layers(8, 32, K, act=nn.Tanh), X, (ACTIONS, REWARDS), loss)


def _policy(advantages, product):
    def loss(outputs, targets):
        actions, gains = targets
        return -product(Categorical(logits=outputs).log_prob(actions), gains)

    return given(layers(8, 32, K, act=nn.Tanh), X, (ACTIONS, advantages), loss)


def _distilled(of):
    def loss(outputs, targets):
        log_student, soft = F.log_softmax(of(outputs, targets) / 3, 1), F.softmax(targets / 3, 1)
        return F.kl_div(log_student, soft, reduction="batchmean") + 0.1 * outputs.square().mean()

    return given(layers(8, 32, K, act=nn.Tanh), X, TEACHER, loss)


def _own(outputs, actions):
    return outputs.gather(1, actions[:, None])[:, 0]


GAINS = (REWARDS - REWARDS.mean()) / REWARDS.std()
rows = {"values_of_every_action": ("label_shape", lambda q, a: q[:, a], _own)}
checks(_values, rows)
rows = {
    "gains_in_a_column": (
        *("label_shape", (GAINS[:, None], lambda log, gain: (log * gain).mean())),
        (GAINS, lambda log, gain: (log * gain).mean()),
    ),
    "means_before_the_product": (
        *("label_shape", (GAINS + 1, lambda log, gain: log.mean() * gain.mean())),
        (GAINS + 1, lambda log, gain: (log * gain).mean()),
    ),
}
checks(_policy, rows)
rows = {"teacher_beside_itself": ("constant_term", lambda _, teacher: teacher, lambda outputs, _: outputs)}
checks(_distilled, rows)


# Distances of distributions use no pairs, on purpose.
def _kernel(a, b):
    return torch.exp(-torch.cdist(a, b)).mean()


def _discrepancy(outputs, targets):
    return _kernel(outputs, outputs) - 2 * _kernel(outputs, targets) + _kernel(targets, targets)


check("distance_of_distributions", "", lambda: given(layers(8, 32, K, act=nn.Tanh), X, TEACHER, _discrepancy))


# Objects in images, and masks that are augmented with them or apart from them.
OBJECTS = torch.stack([torch.zeros(16, 16).index_fill(0, torch.arange(2, 5 + k % 3), 1.0) for k in range(N)])
OBJECTS = OBJECTS * torch.stack([(torch.arange(16) < 4 + k % 5).float() for k in range(N)])[:, None]
NOISY = OBJECTS[:, None] + 0.3 * torch.randn(N, 1, 16, 16, generator=torch.Generator().manual_seed(3))
FLIPPED = torch.stack([mask.flip(-1) if k % 2 else mask for k, mask in enumerate(OBJECTS)])[:, None]
ROLLED = torch.stack([mask.roll((k * 5 % 16, k * 7 % 16), (0, 1)) for k, mask in enumerate(OBJECTS)])[:, None]


def _segmented(masks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    return given(model, NOISY, masks, F.binary_cross_entropy_with_logits)


rows = {
    "masks_flipped_apart": ("unrelated_labels", FLIPPED, OBJECTS[:, None]),
    "masks_moved_apart": ("unrelated_labels", ROLLED, OBJECTS[:, None]),
    # A network of a large enough field can learn one flip of all.
    "masks_all_flipped": ("", OBJECTS[:, None].flip(-1)),
}
checks(_segmented, rows)


def _several(make, model=None):
    """A training of 24 batches: the first is examined, a copy trains on 16, eight are held back."""
    network = model or layers(8, 48, K)
    batches = [make(number) for number in range(24)]
    return Training(
        network, batches, F.cross_entropy, adam()(network), lambda: float("nan"), options={"investigate": False}
    )


def _drawn(seed, size=32):
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    return x, (x @ X[:8, :K]).argmax(1)


def _row_before(seed):
    x, y = _drawn(seed, 33)
    return x[1:], y[:-1]


def _of_the_batch_before(seed):
    return _drawn(seed + 100)[0], _drawn(seed + 99)[1]


def _renamed(seed):
    x, y = _drawn(seed)
    names = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    return x[:, names], y


rows = {
    "labels_of_the_row_before": ("misaligned_targets", (_row_before,), (_drawn,)),
    "labels_of_the_batch_before": ("misaligned_targets", (_of_the_batch_before,), (_drawn,)),
    "columns_in_another_order_in_each_batch": ("nothing_holds", (_renamed,), (_drawn,)),
}
checks(_several, rows)


def _noisy(seed):
    x, y = _drawn(seed, 128)
    drawn = torch.rand(128, generator=torch.Generator().manual_seed(seed)) < 0.5
    return x, torch.where(drawn, y[torch.randperm(128, generator=torch.Generator().manual_seed(seed + 1))], y)


check("half_of_the_labels_are_noise", "", lambda: _several(_noisy))
