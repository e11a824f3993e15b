"""Faults of the objective: collapse, terms of unequal weight, and a generator that is cut off."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.networks import VAE, TwoTowers, contrastive
from tests.faults.training import adam, fitted, made, module, outputs_in_eval, r_squared, sgd, share_correct


@fault
def two_towers_without_negatives(broken: bool) -> Training:
    """Two towers are trained to agree on true pairs only: they agree on everything by a constant output."""
    towers = data.pairs()
    targets = torch.arange(len(towers[0]))
    model = TwoTowers()

    def attraction_only(outputs, targets):
        query, item = outputs
        return 1 - (query * item[targets]).sum(-1).mean()

    success = fitted(model, towers, targets, contrastive, 4.16)
    return made(model, towers, targets, adam(5e-3), attraction_only if broken else contrastive, success)


@fault
def vae_collapses_under_kl(broken: bool) -> Training:
    """The KL term is summed over batch and code, the reconstruction averaged over batch and pixels."""
    x = data.digits(256)[0].flatten(1)
    model = VAE()

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

    convs = [
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
    ]
    heads = {"classes": nn.Linear(32 * 16, 4), "box": nn.Linear(32 * 16, 2)}
    model = module(forward, backbone=nn.Sequential(*convs, nn.Flatten()), **heads)

    def loss(outputs, targets):
        return F.cross_entropy(outputs["classes"], targets["classes"]) + F.smooth_l1_loss(
            outputs["box"], targets["box"]
        )

    def success() -> float:
        return share_correct(outputs_in_eval(model, x)["classes"].argmax(1), labels)

    return made(model, x, targets, sgd(0.05), loss, success)


@fault
def generator_step_through_detach(broken: bool) -> Training:
    """The generator's loss is computed on detached samples, so that no gradient reaches the generator."""
    noise = torch.randn(128, 8)
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, noise):
        return self.out(F.leaky_relu(self.project(noise), 0.2))

    model = module(forward, project=nn.Linear(8, 32), out=nn.Linear(32, 2))
    real = torch.ones(128, 1)
    ring = F.normalize(torch.randn(128, 2)) * 2
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
