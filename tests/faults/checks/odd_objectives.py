"""Healthy trainings of unusual objectives: teachers, latent variables, equations, policies."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam

from tests.faults.checks.odd_forms import adam, body, labelled, training
from tests.faults.training import module


@training
def a_copy_as_teacher():
    student = body()
    parts = {"student": student, "teacher": deepcopy(body()).requires_grad_(False)}
    model = module(lambda self, x: (self.student(x), self.teacher(x)), **parts)
    x, y = labelled()

    def loss(outputs, y):
        own, taught = outputs
        soft = F.kl_div(own.log_softmax(1), taught.detach().softmax(1), reduction="batchmean")
        return F.cross_entropy(own, y) + 0.1 * soft

    return model, (x, y), loss, Adam(student.parameters(), 1e-2)


@training
def a_variational_autoencoder():
    def run(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(z), mean, log_variance

    def loss(outputs, x):
        made, mean, log_variance = outputs
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.mse_loss(made, x) + 0.01 * divergence

    model = module(run, encoder=body(out=8), decoder=body(width=4, out=8))
    x = torch.randn(32, 2) @ torch.randn(2, 8)
    return model, (x, x), loss, adam(model)


@training
def a_field_of_one_point():
    def run(self, x):
        for layer in self.layers[:-1]:
            x = torch.sin(30 * layer(x)) if layer is self.layers[0] else torch.sin(layer(x))
        return self.layers[-1](x)

    model = module(run, layers=nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 3)]))
    nn.init.uniform_(model.layers[0].weight, -0.5, 0.5)
    x = torch.rand(128, 2) * 2 - 1
    y = torch.stack([(5 * x[:, 0]).sin(), (4 * x[:, 1]).cos(), x.prod(1)], 1)
    return model, (x, y), F.mse_loss, adam(model)


@training
def an_equation_as_loss():
    def run(self, t):
        t = t.requires_grad_()
        u = self.body(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return u, slope, self.body(torch.zeros(1, 1))

    def loss(outputs, _):
        u, slope, start = outputs
        return (slope + u).square().mean() + (start - 1).square().mean()

    layers = nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    model = module(run, body=nn.Sequential(*layers))
    return model, (torch.linspace(0, 2, 40)[:, None], None), loss, adam(model)


@training
def bags_of_words():
    parts = {"bag": nn.EmbeddingBag(50, 16), "head": nn.Linear(16, 3)}
    model = module(lambda self, words, starts: self.head(self.bag(words, starts)), **parts)
    batch = torch.randint(50, (96,)), torch.arange(0, 96, 4)
    return model, (batch, torch.arange(24) % 3), F.cross_entropy, adam(model, 3e-2)


@training
def several_sizes_of_images():
    model = module(
        lambda self, images: torch.stack([self.head(self.body(image[None]).mean((2, 3))[0]) for image in images]),
        body=nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
        head=nn.Linear(32, 3),
    )
    images = [torch.randn(3, 8 + size, 9) + size % 3 for size in range(9)]
    return model, ((images,), torch.arange(9) % 3), F.cross_entropy, adam(model, 1e-2)
