"""Faults of outputs, losses and their terms: wrong activations, shapes, signs and weights, labels that are lost."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.networks import VAE, TwoTowers, contrastive, mlp
from tests.faults.training import (
    accuracy,
    adam,
    adamw,
    binary_accuracy,
    fitted,
    made,
    module,
    outputs_in_eval,
    r_squared,
    sgd,
    share_correct,
)


@fault
def softmax_before_cross_entropy(broken: bool) -> Training:
    """A convolutional network returns softmax probabilities to a loss that applies the softmax itself."""

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return F.softmax(x, dim=1) if broken else x

    convs = {"conv1": nn.Conv2d(1, 16, 3, padding=1), "conv2": nn.Conv2d(16, 32, 3, padding=1)}
    model = module(forward, **convs, fc1=(32 * 4, 64), fc2=(64, 10))
    return made(model, *data.digits(256), adam(2e-3), guess=2.3026)


@fault
def softmax_over_one_output(broken: bool) -> Training:
    """A binary classifier applies softmax to its one output, which is then always 1."""
    x, y = data.tumors()
    model = mlp(30, 32, 16, 1, last=[nn.Softmax(dim=1) if broken else nn.Sigmoid()])
    return made(model, x, y[:, None], adam(5e-3), nn.BCELoss(), binary_accuracy(model, x, y[:, None], 0.5))


@fault
def sigmoid_output_for_large_targets(broken: bool) -> Training:
    """A regression whose targets are between 25 and 346 ends in a sigmoid."""
    x, y = data.table("diabetes")
    return made(mlp(10, 64, 32, 1, last=[nn.Sigmoid()] * broken), x, y.float()[:, None], adam(1e-2))


@fault
def relu_output_of_autoencoder(broken: bool) -> Training:
    """An autoencoder of standardized features ends in a ReLU, and half of what it must return is negative."""
    x = data.table("wine")[0]
    last = torch.relu if broken else torch.clone
    parts = {"encoder": mlp(13, 32, 8), "decoder": mlp(8, 32, 13)}
    return made(module(lambda self, x: last(self.decoder(self.encoder(x))), **parts), x, x, adam(1e-2))


@fault
def sigmoid_before_bce_with_logits(broken: bool) -> Training:
    """A multi-label classifier returns sigmoids to a loss that applies the sigmoid itself."""
    x = torch.randn(256, 20)
    y = ((x @ torch.randn(20, 5)) > 2.0).float()
    return made(mlp(20, 64, 5, last=[nn.Sigmoid()] * broken), x, y, adam(1e-2), nn.BCEWithLogitsLoss(), guess=0.64)


@fault
def cosine_logits_without_scale(broken: bool) -> Training:
    """The logits are cosines, at most 1, so that the cross entropy cannot come near 0."""

    def forward(self, x):
        return self.scale * F.normalize(self.backbone(x), dim=1) @ F.normalize(self.prototypes, dim=1).T

    backbone, prototypes = mlp(64, 128, 32, flat=True), nn.Parameter(torch.randn(10, 32))
    model = module(forward, backbone=backbone, prototypes=prototypes, scale=1.0 if broken else 16.0)
    return made(model, *data.digits(256), adam(5e-3), guess=2.3026)


@fault
def output_clamped_above_its_start(broken: bool) -> Training:
    """Predictions start near 0 and are clamped to at least 5, where the clamp has no gradient."""
    x, y = data.smooth_function()

    def forward(self, x):
        price = self.price(self.body(x)).squeeze(-1)
        return price.clamp(min=5.0) if broken else price

    body = nn.Sequential(*mlp(6, 64, 64, act=nn.Tanh), nn.Tanh())
    return made(module(forward, body=body, price=(64, 1)), x, y[:, 0] + 7.0, adam(1e-2))


@fault
def cross_entropy_over_one_logit(broken: bool) -> Training:
    """A three-class problem gets one logit, and labels that are the argmax over one column: both are always 0."""
    x, labels = data.table("iris")
    model = mlp(4, 32, 1 if broken else 3)
    y = labels[:, None].float().argmax(1) if broken else labels
    return made(model, x, y, adam(5e-3, torch.optim.RMSprop), success=accuracy(model, x, labels))


@fault
def targets_broadcast_against_outputs(broken: bool) -> Training:
    """Outputs are (N, 1) and targets (N,): the loss compares every output with every target."""
    x, y = data.smooth_function()
    model = mlp(6, 64, 64, 1)
    return made(model, x, y[:, 0] if broken else y, adam(5e-3), success=r_squared(model, x, y))


@fault
def softmax_over_the_batch(broken: bool) -> Training:
    """Log-probabilities are normalized over the examples of the batch instead of over the classes."""
    model = mlp(64, 128, 10, flat=True, last=[nn.LogSoftmax(dim=int(not broken))])
    return made(model, *data.digits(256), adam(5e-3), nn.NLLLoss(), guess=2.3026)


@fault
def nll_loss_on_raw_scores(broken: bool) -> Training:
    """NLLLoss, which takes log-probabilities, gets raw scores: it falls without bound."""
    x, y = data.waves()

    def forward(self, x):
        scores = self.classifier(self.lstm(x)[0][:, -1])
        return scores if broken else scores.log_softmax(1)

    model = module(forward, lstm=nn.LSTM(1, 24, batch_first=True), classifier=(24, 2))
    return made(model, x, y, adam(1e-2), nn.NLLLoss(), fitted(model, x, y, F.cross_entropy, 0.6931))


@fault
def scores_reshaped_instead_of_permuted(broken: bool) -> Training:
    """A segmentation network with skip connection reshapes (N, H, W, C) scores to (N, C, H, W)."""
    batches = [data.scenes(24) for _ in range(21)]

    def forward(self, x):
        merged = self.merge(torch.cat([self.up(self.middle(self.down(x))), x], 1))
        scores = self.head(merged.permute(0, 2, 3, 1))  # (N, H, W, C)
        n, h, w, c = scores.shape
        return scores.reshape(n, c, h, w) if broken else scores.permute(0, 3, 1, 2)

    parts = {
        "down": nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        "middle": nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        "up": nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        "merge": nn.Sequential(nn.Conv2d(33, 16, 3, padding=1), nn.ReLU()),
    }
    model = module(forward, **parts, head=(16, 2))
    return made(model, *batches[0], adam(3e-3), success=accuracy(model, *batches[20]), stream=batches[:20])


@fault
def hinge_labels_for_bce(broken: bool) -> Training:
    """Binary cross entropy gets labels −1 and 1 instead of 0 and 1, and falls without bound."""
    x, y = data.tumors()
    model = nn.Sequential(nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    success = fitted(model, x, y, F.binary_cross_entropy_with_logits, 0.66)
    return made(model, x, 2 * y - 1 if broken else y, adamw(1e-2), nn.BCEWithLogitsLoss(), success)


@fault
def similarity_minimized(broken: bool) -> Training:
    """A denoising network minimizes the cosine similarity with the clean image instead of its negative."""
    clean = data.digits(128)[0].flatten(1)
    noisy = clean + 0.3 * torch.randn_like(clean)
    model, sign = mlp(64, 96, 64, act=nn.GELU), 1 if broken else -1

    def similarity(outputs, targets=clean):
        return F.cosine_similarity(outputs, targets, dim=1).mean()

    def success() -> float:
        return similarity(outputs_in_eval(model, noisy)).item()

    return made(model, noisy, clean, adamw(2e-3), lambda o, t: sign * similarity(o, t), success)


@fault
def distillation_without_log(broken: bool) -> Training:
    """Knowledge distillation passes probabilities of the student to `kl_div`, which takes log-probabilities."""
    x = torch.randn(256, 12)
    teacher = (x @ torch.randn(12, 6)).softmax(1)
    model = mlp(12, 64, 6)

    def divergence(outputs, targets, activation=torch.log_softmax):
        return F.kl_div(activation(outputs, 1), targets, reduction="batchmean")

    def loss(outputs, targets):
        return divergence(outputs, targets, torch.softmax if broken else torch.log_softmax)

    guess = divergence(torch.zeros_like(teacher), teacher).item()
    return made(model, x, teacher, adam(5e-3), loss, fitted(model, x, teacher, divergence, guess))


@fault
def class_labels_divided_by_255(broken: bool) -> Training:
    """The class labels are divided by 255 together with the images, and become 0 as integers."""
    x, y = data.digits(256)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))
    return made(model, x, (y / 255).long() if broken else y, adam(5e-3), success=accuracy(model, x, y))


@fault
def two_towers_without_negatives(broken: bool) -> Training:
    """Two towers are trained to agree on true pairs only: they agree on everything by a constant output."""
    towers = data.pairs()
    targets, model = torch.arange(len(towers[0])), TwoTowers()

    def attraction_only(outputs, targets):
        query, item = outputs
        return 1 - (query * item[targets]).sum(-1).mean()

    success = fitted(model, towers, targets, contrastive, 4.16)
    return made(model, towers, targets, adam(5e-3), attraction_only if broken else contrastive, success)


@fault
def vae_collapses_under_kl(broken: bool) -> Training:
    """The KL term is summed over batch and code, the reconstruction averaged over batch and pixels."""
    x, model = data.digits(256)[0].flatten(1), VAE()

    def loss(outputs, targets):
        image, mean, log_variance = outputs
        reconstruction = F.binary_cross_entropy(image, targets, reduction="mean" if broken else "sum")
        return reconstruction - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()

    return made(model, x, x, adam(5e-3), loss, r_squared(model, x, x))


@fault
def box_loss_outweighs_classes(broken: bool) -> Training:
    """A detector with two heads regresses box centers in pixels of a large image beside a classification."""
    x, masks = data.scenes(64)
    centers, area = data.centers(masks)
    centers = centers / 16
    labels = (centers > 0.5).long()[:, 0] * 2 + (area > 20).long()
    targets = {"classes": labels, "box": centers * 2000 if broken else centers}

    def forward(self, x):
        features = self.backbone(x)
        return {"classes": self.classes(features), "box": self.box(features)}

    convs = [(nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()) for before, after in ((1, 16), (16, 32))]
    backbone = nn.Sequential(*convs[0], *convs[1], nn.Flatten())
    model = module(forward, backbone=backbone, classes=(32 * 16, 4), box=(32 * 16, 2))

    def loss(outputs, targets):
        boxes = F.smooth_l1_loss(outputs["box"], targets["box"])
        return F.cross_entropy(outputs["classes"], targets["classes"]) + boxes

    def success() -> float:
        return share_correct(outputs_in_eval(model, x)["classes"].argmax(1), labels)

    return made(model, x, targets, sgd(0.05), loss, success)


@fault
def generator_step_through_detach(broken: bool) -> Training:
    """The generator's loss is computed on detached samples, so that no gradient reaches the generator."""
    noise = torch.randn(128, 8)
    critic = mlp(2, 32, 1, act=lambda: nn.LeakyReLU(0.2))
    model = module(lambda self, noise: self.out(F.leaky_relu(self.project(noise), 0.2)), project=(8, 32), out=(32, 2))
    real, ring = torch.ones(128, 1), F.normalize(torch.randn(128, 2)) * 2
    schooling = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for _ in range(40):
        schooling.zero_grad()
        F.softplus(torch.cat([critic(model(noise).detach()), -critic(ring)])).mean().backward()
        schooling.step()
    critic.zero_grad()

    def loss(samples, targets):
        judged = critic(samples.detach() if broken else samples)
        return F.binary_cross_entropy_with_logits(judged, targets)

    success = fitted(model, noise, real, loss, 0.6931)
    return made(model, noise, real, adam(1e-2, betas=(0.5, 0.999)), loss, success)
