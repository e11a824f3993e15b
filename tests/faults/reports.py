"""Public questions of the kind "my network does not learn", rebuilt small; each batch has a generator of its own."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Batch, Training, fault
from tests.faults.training import adam, adamw, made, module, outputs_in_eval, sgd, train

_VALUES = torch.randn(4, 8, generator=Generator().manual_seed(3))


def _source(number: int) -> Generator:
    return Generator().manual_seed(number)


def _share(model: nn.Module, batch: Batch) -> float:
    return (outputs_in_eval(model, batch[0]).argmax(1) == batch[1]).float().mean().item()


def _blobs(step: int, count: int = 32, apart: bool = False) -> Batch:
    """Return noisy images of disks and their masks, both shifted by the same numbers, or apart."""
    source = _source(step)
    centers, radii = torch.rand(count, 2, generator=source) * 6 + 5, torch.rand(count, generator=source) * 1.5 + 2
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    distances = (rows - centers[:, 0, None, None]) ** 2 + (columns - centers[:, 1, None, None]) ** 2
    masks = (distances < radii[:, None, None] ** 2).float()[:, None]
    images = masks * 0.8 + 0.3 * torch.randn(count, 1, 16, 16, generator=source)
    of_images = torch.randint(-6, 7, (count, 2), generator=source)
    of_masks = torch.randint(-6, 7, (count, 2), generator=source) if apart else of_images

    def moved(pictures: Tensor, shifts: Tensor) -> Tensor:
        return torch.stack([x.roll(tuple(shift), (1, 2)) for x, shift in zip(pictures, shifts.tolist(), strict=True)])

    return moved(images, of_images), moved(masks, of_masks)


def _segmentation(loss: object, apart: bool) -> Training:
    convs = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*convs, nn.Conv2d(12, 1, 1))

    def overlap() -> float:
        x, masks = _blobs(9999, 64)
        found = outputs_in_eval(model, x) > 0
        return ((found & (masks > 0)).sum() / ((found | (masks > 0)).sum() + 1e-6)).item()

    return made(model, *_blobs(0, apart=apart), adam(5e-3), loss, overlap, lambda i: _blobs(i, apart=apart))


@fault
def mask_moved_apart(broken: bool) -> Training:
    """Images and masks are augmented by random numbers of their own, so that a mask is not on its object."""
    return _segmentation(F.binary_cross_entropy_with_logits, broken)


@fault
def coefficient_as_loss(broken: bool) -> Training:
    """The Dice coefficient is minimized instead of one minus it."""

    def dice(outputs, masks):
        p = outputs.sigmoid()
        value = (2 * (p * masks).sum() + 1) / (p.sum() + masks.sum() + 1)
        return value if broken else 1 - value

    return _segmentation(dice, False)


@fault
def advantages_in_a_column(broken: bool) -> Training:
    """Advantages are (N, 1) and ratios (N,): their product is N × N, and its mean is that of zero."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))

    def rollout(step: int) -> Batch:
        states = torch.randn(128, 8, generator=_source(step))
        with torch.no_grad():
            policy = torch.distributions.Categorical(logits=model(states))
        actions = torch.multinomial(policy.probs, 1, generator=_source(step + 7))[:, 0]
        rewards = (actions == (states @ _VALUES.T).argmax(1)).float()
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        return states, (actions, advantages[:, None] if broken else advantages, policy.log_prob(actions))

    def loss(outputs, targets):
        actions, advantages, old = targets
        ratio = (torch.distributions.Categorical(logits=outputs).log_prob(actions) - old).exp()
        return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()

    return made(model, *rollout(0), adam(3e-3), loss, lambda: _share(model, _best()), rollout)


def _best() -> Batch:
    states = torch.randn(2000, 8, generator=_source(99))
    return states, (states @ _VALUES.T).argmax(1)


@fault
def values_of_all_actions(broken: bool) -> Training:
    """Q(s)[:, a] takes the columns a for all states, (N, N), and the targets (N,) broadcast."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))

    def batch(step: int) -> Batch:
        source = _source(step)
        states, actions = torch.randn(64, 8, generator=source), torch.randint(0, 4, (64,), generator=source)
        return states, (actions, (states @ _VALUES.T)[torch.arange(64), actions] / 2)

    def loss(outputs, targets):
        actions, returns = targets
        values = outputs[:, actions] if broken else outputs.gather(1, actions[:, None])[:, 0]
        return ((values - returns) ** 2).mean()

    optimizer = adam(2e-3, torch.optim.RMSprop)
    return made(model, *batch(0), optimizer, loss, lambda: _share(model, _best()), batch)


def _windows(recordings: Tensor, source: Generator) -> Batch:
    count = len(recordings)
    base, scale = (recordings.float() * 12.9898).sin() * 5, (recordings.float() * 7.23).cos().abs() * 2 + 0.3
    labels, times = torch.randint(0, 2, (count,), generator=source), torch.linspace(0, 6.28, 24)
    phases = torch.rand(count, 1, generator=source) * 6.28
    waves = (torch.where(labels == 1, 3.0, 1.0)[:, None] * times + phases).sin()
    noisy = waves + 0.2 * torch.randn(count, 24, generator=source)
    return (base[:, None] + scale[:, None] * noisy)[:, None], labels


@fault
def batches_of_one_recording(broken: bool) -> Training:
    """Every batch holds the windows of one recording: the running statistics are those of no batch."""
    convs = [nn.Conv1d(1, 8, 5), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 5), nn.BatchNorm1d(8), nn.ReLU()]
    model = nn.Sequential(*convs, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))

    def batch(step: int) -> Batch:
        source = _source(step)
        return _windows(torch.randint(0, 40, (1 if broken else 64,), generator=source).expand(64), source)

    def success() -> float:
        source = _source(9999)
        return _share(model, _windows(torch.randint(0, 40, (1000,), generator=source), source))

    training = made(model, *batch(0), adam(5e-3), F.cross_entropy, success, batch)
    train(training, 200)
    training.optimizer.zero_grad()
    return training


def _lookups(step: int, count: int = 128) -> Batch:
    source = _source(step)
    keys = torch.stack([torch.randperm(10, generator=source)[:8] for _ in range(count)])
    values, chosen = (
        torch.randint(0, 10, (count, 8), generator=source),
        torch.randint(0, 8, (count,), generator=source),
    )
    every = torch.arange(count)
    return (keys, values, keys[every, chosen]), values[every, chosen]


@fault
def softmax_over_one_score(broken: bool) -> Training:
    """Scores of words are (words · N, 1), and the softmax goes over the axis of length 1."""

    def forward(self, keys, values, query):
        k, v = self.k(keys).transpose(0, 1), self.v(values).transpose(0, 1)
        words, count, width = k.shape
        q = self.q(query)[None].expand_as(k)
        score = self.u(torch.tanh(self.attn(torch.cat([k * q, k], 2).reshape(words * count, 2 * width))))
        if broken:
            weights = F.softmax(score, dim=1).view(words, count, 1)
        else:
            weights = F.softmax(score.view(words, count, 1), dim=0)
        return self.o((weights * v).sum(0))

    tables = {name: nn.Embedding(40, 32) for name in "kvq"}
    model = module(forward, **tables, attn=nn.Linear(64, 32), u=nn.Linear(32, 1), o=nn.Linear(32, 10))
    return made(model, *_lookups(0), adam(1e-2), None, lambda: _share(model, _lookups(9999, 1000)), _lookups)


@fault
def final_states_viewed(broken: bool) -> Training:
    """The final states (2, N, H) of a bidirectional GRU are viewed as (N, 2H): neighbouring examples are mixed."""

    def forward(self, x):
        states = self.g(self.e(x))[1]
        return self.o(states.view(len(x), -1) if broken else states.transpose(0, 1).reshape(len(x), -1))

    gru = {"e": nn.Embedding(12, 16), "g": nn.GRU(16, 24, batch_first=True, bidirectional=True)}
    model = module(forward, **gru, o=nn.Linear(48, 4))

    def batch(step: int, count: int = 64) -> Batch:
        x = torch.randint(0, 12, (count, 9), generator=_source(step))
        return x, (x[:, 0] % 2) * 2 + x[:, -1] % 2

    return made(model, *batch(0), adam(5e-3), None, lambda: _share(model, batch(9999, 1000)), batch)


@fault
def distilled_from_itself(broken: bool) -> Training:
    """The student's log-probabilities are computed from the teacher's logits: their divergence is 0."""
    torch.manual_seed(11)
    x, y = data.digits(1797)
    x = (x - x.mean()) / x.std()
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def images(step: int) -> Batch:
        chosen = torch.randint(0, 1437, (64,), generator=_source(step))
        return x[chosen], y[chosen]

    train(made(teacher, *images(0), adam(1e-2), stream=images), 150)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

    def batch(step: int) -> Batch:
        inputs, labels = images(step)
        return inputs, (teacher(inputs).detach(), labels)

    def loss(outputs, targets):
        large, labels = targets
        soft, logarithms = F.softmax(large / 5, 1), F.log_softmax((large if broken else outputs) / 5, 1)
        return 22.5 * F.kl_div(logarithms, soft, reduction="batchmean") + 0.1 * F.cross_entropy(outputs, labels)

    def success() -> float:
        soft, logarithms = F.softmax(teacher(x[1437:]) / 5, 1), F.log_softmax(outputs_in_eval(model, x[1437:]) / 5, 1)
        return 1 - F.kl_div(logarithms, soft.detach(), reduction="batchmean").item() / 0.5

    return made(model, *batch(0), sgd(0.1, 0.0), loss, success, batch)


@fault
def points_around_ninety(broken: bool) -> Training:
    """A network of sigmoids gets points around (92, 92); the twin gets them standardized."""

    def batch(step: int, count: int = 128) -> Batch:
        x = torch.randn(count, 2, generator=_source(step)) * 4
        return x + 92 if broken else x / 4, (x[:, 0] + 0.7 * x[:, 1] > 0).float()[:, None]

    model = nn.Sequential(nn.Linear(2, 16), nn.Sigmoid(), nn.Linear(16, 1), nn.Sigmoid())

    def success() -> float:
        x, y = batch(9999, 1000)
        return ((outputs_in_eval(model, x) > 0.5) == (y > 0.5)).float().mean().item()

    return made(model, *batch(0), adam(1e-2), nn.BCELoss(), success, batch)


@fault
def end_of_text_is_padding(broken: bool) -> Training:
    """The padding is the token that ends a text, and the label of the one real end is ignored with it."""

    def batch(step: int, count: int = 32, broken: bool = broken) -> Batch:
        """Count up to a multiple of five, and end there."""
        x = torch.randint(1, 10, (count, 1), generator=_source(step)) + torch.arange(12)
        stop = (x % 5 == 0).float().argmax(1)
        tokens = torch.where(torch.arange(12) > stop[:, None], 0, x.clamp(max=15))
        labels = torch.where(tokens == 0, -100, tokens)
        ends = stop + 1 < 12
        if not broken:
            labels[torch.arange(count)[ends], stop[ends] + 1] = 0
        return tokens, labels

    def forward(self, x):
        return self.o(self.g(self.e(x))[0])

    gru = {"e": nn.Embedding(16, 24), "g": nn.GRU(24, 48, batch_first=True)}
    model = module(forward, **gru, o=nn.Linear(48, 16))

    def loss(outputs, labels):
        return F.cross_entropy(outputs[:, :-1].reshape(-1, 16), labels[:, 1:].reshape(-1), ignore_index=-100)

    def success() -> float:
        tokens, labels = batch(9999, 500, broken=False)
        is_end = labels[:, 1:] == 0
        return (outputs_in_eval(model, tokens)[:, :-1].argmax(2)[is_end] == 0).float().mean().item()

    return made(model, *batch(0), adamw(5e-3), loss, success, batch)
