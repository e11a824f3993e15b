"""Faults of what a loss is given: wrong shapes, wrong signs, wrong kinds of input, labels that are lost."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.training import accuracy, adam, adamw, fitted, made, module, outputs_in_eval, r_squared


@fault
def targets_broadcast_against_outputs(broken: bool) -> Training:
    """Outputs are (N, 1) and targets (N,): the loss compares every output with every target."""
    x, y = data.smooth_function()
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return made(model, x, y[:, 0] if broken else y, adam(5e-3), success=r_squared(model, x, y))


@fault
def softmax_over_the_batch(broken: bool) -> Training:
    """Log-probabilities are normalized over the examples of the batch instead of over the classes."""
    x, y = data.digits(256)
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)]
    return made(
        nn.Sequential(*layers, nn.LogSoftmax(dim=int(not broken))), x, y, adam(5e-3), nn.NLLLoss(), guess=2.3026
    )


@fault
def nll_loss_on_raw_scores(broken: bool) -> Training:
    """NLLLoss, which takes log-probabilities, gets raw scores: it falls without bound."""
    x, y = data.waves()

    def forward(self, x):
        scores = self.classifier(self.lstm(x)[0][:, -1])
        return scores if broken else scores.log_softmax(1)

    model = module(forward, lstm=nn.LSTM(1, 24, batch_first=True), classifier=nn.Linear(24, 2))
    return made(model, x, y, adam(1e-2), nn.NLLLoss(), fitted(model, x, y, F.cross_entropy, 0.6931))


@fault
def scores_reshaped_instead_of_permuted(broken: bool) -> Training:
    """A segmentation network with skip connection reshapes (N, H, W, C) scores to (N, C, H, W)."""
    batches = [data.scenes(24) for _ in range(21)]

    def forward(self, x):
        merged = self.merge(torch.cat([self.up(self.middle(self.down(x))), x], 1))
        scores = self.head(merged.permute(0, 2, 3, 1))  # (N, H, W, C)
        if not broken:
            return scores.permute(0, 3, 1, 2)
        n, h, w, c = scores.shape
        return scores.reshape(n, c, h, w)

    model = module(
        forward,
        down=nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        middle=nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        up=nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        merge=nn.Sequential(nn.Conv2d(33, 16, 3, padding=1), nn.ReLU()),
        head=nn.Linear(16, 2),
    )
    return made(model, *batches[0], adam(3e-3), success=accuracy(model, *batches[20]), stream=batches[:20])


@fault
def hinge_labels_for_bce(broken: bool) -> Training:
    """Binary cross entropy gets labels −1 and 1 instead of 0 and 1, and falls without bound."""
    x, y = data.table("breast_cancer")
    x, zero_one = data.standardized(x), y.float()
    model = nn.Sequential(nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    success = fitted(model, x, zero_one, F.binary_cross_entropy_with_logits, 0.66)
    return made(model, x, 2 * zero_one - 1 if broken else zero_one, adamw(1e-2), nn.BCEWithLogitsLoss(), success)


@fault
def similarity_minimized(broken: bool) -> Training:
    """A denoising network minimizes the cosine similarity with the clean image instead of its negative."""
    clean = data.digits(128)[0].flatten(1)
    noisy = clean + 0.3 * torch.randn_like(clean)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))

    def loss(outputs, targets):
        similarity = F.cosine_similarity(outputs, targets, dim=1).mean()
        return similarity if broken else -similarity

    def success() -> float:
        return F.cosine_similarity(outputs_in_eval(model, noisy), clean, dim=1).mean().item()

    return made(model, noisy, clean, adamw(2e-3), loss, success)


@fault
def distillation_without_log(broken: bool) -> Training:
    """Knowledge distillation passes probabilities of the student to `kl_div`, which takes log-probabilities."""
    x = torch.randn(256, 12)
    teacher = (x @ torch.randn(12, 6)).softmax(1)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 6))

    def loss(outputs, targets):
        student = outputs.softmax(1) if broken else outputs.log_softmax(1)
        return F.kl_div(student, targets, reduction="batchmean")

    def divergence(outputs, targets):
        return F.kl_div(outputs.log_softmax(1), targets, reduction="batchmean")

    guess = F.kl_div(torch.full_like(teacher, 1 / 6).log(), teacher, reduction="batchmean").item()
    return made(model, x, teacher, adam(5e-3), loss, fitted(model, x, teacher, divergence, guess))


@fault
def class_labels_divided_by_255(broken: bool) -> Training:
    """The class labels are divided by 255 together with the images, and become 0 as integers."""
    x, y = data.digits(256)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))
    return made(model, x, (y / 255).long() if broken else y, adam(5e-3), success=accuracy(model, x, y))
