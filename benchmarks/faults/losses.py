"""Faults of the loss: wrong shapes, wrong signs, wrong kinds of input, wrong weights between terms."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import deeplocalize, remembered
from benchmarks.faults.truth import NO_GRADIENT, NOT_FITTED, both

_UNBOUNDED = (
    r"unbounded|no (lower )?bound|negative loss|loss (is|becomes|falls to|goes to) negative|"
    r"minus infinity|-inf\w*|below (0|zero)"
)


@fault(
    "loss",
    remembered("MSELoss of (N, 1) and (N,): using a target size that is different to the input size"),
    both(r"broadcast\w*|shape\w*|\(N, ?1\)|squeeze|size", r"target|label|output|loss"),
)
def targets_broadcast_against_outputs(broken: bool) -> Training:
    """Outputs are (N, 1) and targets (N,): the loss compares every output with every target."""
    x, y = data.smooth_function()
    targets = y[:, 0] if broken else y
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, targets), nn.MSELoss(), optimizer, measures.r_squared(model, x, y))


@fault(
    "loss",
    remembered("log_softmax over dim=0"),
    both(r"softmax|normali[sz]\w+|log_softmax", r"batch|dim\w*[ =]*(0|1|-1)|axis|examples|across"),
    reaches=0.7,
    below=0.2,
)
def softmax_over_the_batch(broken: bool) -> Training:
    """Log-probabilities are normalized over the examples of the batch instead of over the classes."""
    x, y = data.digits(256)
    axis = 0 if broken else 1
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(dim=axis))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    success = measures.fitted(model, x, y, F.nll_loss, 2.3026)
    return Training(model, (x, y), nn.NLLLoss(), optimizer, success)


@fault(
    "loss",
    remembered("NLLLoss on raw scores gives a negative loss"),
    both(
        r"nll\w*|negative log.?likelihood|log.?softmax|log.?prob\w*|" + _UNBOUNDED,
        r"log.?softmax|log.?prob\w*|raw|logits|cross.?entropy|scores",
    ),
    symptom=r"negative|unbounded|diverg\w+|grows?|-inf",
    reaches=0.6,
    below=0.1,
)
def nll_loss_on_raw_scores(broken: bool) -> Training:
    """NLLLoss, which takes log-probabilities, gets raw scores: it falls without bound."""
    x, y = data.waves()
    model = LastStep(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    success = measures.fitted(model, x, y, F.cross_entropy, 0.6931)
    return Training(model, (x, y), nn.NLLLoss(), optimizer, success)


class LastStep(nn.Module):
    def __init__(self, raw: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.classifier = nn.Linear(24, 2)
        self.raw = raw

    def forward(self, x: Tensor) -> Tensor:
        scores = self.classifier(self.lstm(x)[0][:, -1])
        return scores if self.raw else scores.log_softmax(1)


class Segmenter(nn.Module):
    def __init__(self, classes: int = 2, permuted: bool = True) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.middle = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.merge = nn.Sequential(nn.Conv2d(33, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(16, classes)
        self.permuted = permuted

    def forward(self, x: Tensor) -> Tensor:
        merged = self.merge(torch.cat([self.up(self.middle(self.down(x))), x], 1))
        scores = self.head(merged.permute(0, 2, 3, 1))  # (N, H, W, C)
        if self.permuted:
            return scores.permute(0, 3, 1, 2)
        n, h, w, c = scores.shape
        return scores.reshape(n, c, h, w)


@fault(
    "loss",
    remembered("view is not permute: channels last reshaped to channels first"),
    both(
        r"reshap\w*|view|permut\w*|transpos\w*|axis|axes|layout|channels?",
        r"permut\w*|transpos\w*|mix\w*|scrambl\w*|order|wrong|reshap\w*|view",
    ),
    reaches=0.7,
    below=0.5,
)
def scores_reshaped_instead_of_permuted(broken: bool) -> Training:
    """A segmentation network with skip connection reshapes (N, H, W, C) scores to (N, C, H, W)."""
    batches = [data.scenes(24) for _ in range(21)]
    model = Segmenter(permuted=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    success = measures.accuracy(model, *batches[20])
    return Training(model, batches[0], nn.CrossEntropyLoss(), optimizer, success, lambda step: batches[step % 20])


@fault(
    "loss",
    remembered("labels -1 and 1 for BCEWithLogitsLoss"),
    both(r"label|target", r"-1\b|negative|outside|range|\[0, ?1\]|0 (and|or|to) 1|" + _UNBOUNDED),
    symptom=r"negative|unbounded|diverg\w+|-inf",
    reaches=0.7,
    below=0.2,
)
def hinge_labels_for_bce(broken: bool) -> Training:
    """Binary cross entropy gets labels −1 and 1 instead of 0 and 1, and falls without bound."""
    x, y = data.table("breast_cancer")
    x, zero_one = data.standardized(x), y.float()
    labels = 2 * zero_one - 1 if broken else zero_one

    model = nn.Sequential(nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    success = measures.fitted(model, x, zero_one, F.binary_cross_entropy_with_logits, 0.66)
    return Training(model, (x, labels), nn.BCEWithLogitsLoss(), optimizer, success)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))
        self.item = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, query: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.query(query), dim=-1), F.normalize(self.item(item), dim=-1)


def contrastive(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Return the cross entropy of the similarities of all pairs at temperature 0.1."""
    query, item = outputs
    return F.cross_entropy(query @ item.T / 0.1, targets)


def attraction_only(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Return one minus the mean similarity of the true pairs."""
    query, item = outputs
    return 1 - (query * item[targets]).sum(-1).mean()


@fault(
    "loss",
    remembered("representation collapse: positive pairs only"),
    both(
        r"collaps\w*|negatives?|same (output|embedding|vector)|constant (output|embedding)|identical|"
        r"alike|all (outputs|embeddings)",
        r"pairs?|embedding|output|collaps\w*|example",
    ),
    symptom=r"identical|alike|constant|too (easy|fast)",
    reaches=0.8,
    below=0.5,
    constant_outputs=True,
)
def two_towers_without_negatives(broken: bool) -> Training:
    """Two towers are trained to agree on true pairs only: they agree on everything by a constant output."""
    first, second = data.pairs()
    targets = torch.arange(len(first))
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    loss = attraction_only if broken else contrastive
    success = measures.fitted(model, (first, second), targets, contrastive, 4.16)
    return Training(model, ((first, second), targets), loss, optimizer, success)


@fault(
    "loss",
    remembered("CosineSimilarity is minimized instead of maximized"),
    both(
        r"sign|ascent|maximi[sz]\w*|negat\w*|minimi[sz]\w*|opposite|unbounded|wrong direction|reward|objective",
        r"loss|objective|similarity|gradient",
    ),
    symptom=r"negative|diverg\w+|worse|rises|" + NOT_FITTED,
    reaches=0.5,
    below=0.2,
)
def similarity_minimized(broken: bool) -> Training:
    """A denoising network minimizes the cosine similarity with the clean image instead of its negative."""
    clean = data.digits(128)[0].flatten(1)
    noisy = clean + 0.3 * torch.randn_like(clean)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        similarity = F.cosine_similarity(outputs, targets, dim=1).mean()
        return similarity if broken else -similarity

    def success() -> float:
        return F.cosine_similarity(measures.outputs_in_eval(model, noisy), clean, dim=1).mean().item()

    return Training(model, (noisy, clean), loss, optimizer, success)


@fault(
    "loss",
    remembered("kl_div expects log-probabilities: negative distillation loss"),
    both(r"kl|divergence|log.?prob\w*|log.?softmax|student|input", r"log"),
    symptom=r"negative|" + NOT_FITTED,
    reaches=0.8,
    below=0.5,
)
def distillation_without_log(broken: bool) -> Training:
    """Knowledge distillation passes probabilities of the student to `kl_div`, which takes log-probabilities."""
    x = torch.randn(256, 12)
    teacher = (x @ torch.randn(12, 6)).softmax(1)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        student = outputs.softmax(1) if broken else outputs.log_softmax(1)
        return F.kl_div(student, targets, reduction="batchmean")

    def divergence(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.kl_div(outputs.log_softmax(1), targets, reduction="batchmean")

    guess = F.kl_div(torch.full_like(teacher, 1 / 6).log(), teacher, reduction="batchmean").item()
    return Training(model, (x, teacher), loss, optimizer, measures.fitted(model, x, teacher, divergence, guess))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.mean = nn.Linear(96, 6)
        self.log_variance = nn.Linear(96, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 96), nn.ReLU(), nn.Linear(96, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


@fault(
    "loss",
    remembered("VAE: reconstruction averaged over pixels, KL summed over the batch"),
    both(
        r"\bkl\b|divergence|latent|posterior|log_variance",
        r"collaps\w*|dominat\w*|weight\w*|ignor\w*|outweigh\w*|scale|larger|balance|sum\w*|reduction|averag\w*",
    ),
    symptom=NOT_FITTED + r"|same output|constant",
    reaches=0.3,
    below=0.15,
    constant_outputs=True,
)
def vae_collapses_under_kl(broken: bool) -> Training:
    """The KL term is summed over batch and code, the reconstruction averaged over batch and pixels."""
    x = data.digits(256)[0].flatten(1)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        image, mean, log_variance = outputs
        reconstruction = F.binary_cross_entropy(image, targets, reduction="mean" if broken else "sum")
        return reconstruction - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()

    return Training(model, (x, x), loss, optimizer, measures.r_squared(model, x, x))


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.classes = nn.Linear(32 * 16, 4)
        self.box = nn.Linear(32 * 16, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.backbone(x)
        return {"classes": self.classes(features), "box": self.box(features)}


@fault(
    "loss",
    remembered("detection: boxes in pixels against a classification loss of order one"),
    both(
        r"\bbox\b|heads?\b|terms?\b|two losses|regression (loss|target|head)",
        r"dominat\w*|outweigh\w*|balance|scale\w*|thousand|magnitude|normali[sz]e|larger?\b",
    ),
    reaches=0.7,
    below=0.45,
    symptom=NOT_FITTED + "|explod|diverg",
)
def box_loss_outweighs_classes(broken: bool) -> Training:
    """A detector with two heads regresses box centers in pixels of a large image beside a classification."""
    x, masks = data.scenes(64)
    rows = torch.arange(16.0)[:, None]
    area = masks.sum((1, 2)).float()
    centers = torch.stack([(masks * rows).sum((1, 2)) / area, (masks * rows.T).sum((1, 2)) / area], 1) / 16
    labels = (centers > 0.5).long()[:, 0] * 2 + (area > 20).long()
    targets = {"classes": labels, "box": centers * 2000 if broken else centers}
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(outputs["classes"], targets["classes"]) + F.smooth_l1_loss(
            outputs["box"], targets["box"]
        )

    def success() -> float:
        chosen = measures.outputs_in_eval(model, x)["classes"].argmax(1)
        return measures.above_guess((chosen == labels).float().mean().item(), labels)

    return Training(model, (x, targets), loss, optimizer, success)


@fault(
    "loss",
    deeplocalize("59325381"),
    both(
        r"label|target|class",
        r"same|one class|single class|constant|all (0|zero)|only (one|class|0)|identical|equal|become 0|distinct",
    ),
    symptom=r"zero|too (easy|fast)|loss",
)
def class_labels_divided_by_255(broken: bool) -> Training:
    """The class labels are divided by 255 together with the images, and become 0 as integers."""
    x, y = data.digits(256)
    labels = (y / 255).long() if broken else y
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, labels), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class TransposedGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, noise: Tensor) -> Tensor:
        return self.out(F.leaky_relu(self.project(noise), 0.2))


@fault(
    "loss",
    remembered("DCGAN of pytorch/examples, whose generator step must not detach"),
    both(
        r"detach\w*|graph|disconnect\w*|does not depend|not reach\w*|cut|(no|none of the|"
        r"all) parameters?|requires? no grad\w*|no gradient",
        r"generator|project|\bout\b|(no|none of the|all) parameters?|detach\w*|does not depend|any parameter",
    ),
    symptom=NO_GRADIENT + "|" + NOT_FITTED,
    reaches=0.5,
    below=0.3,
)
def generator_step_through_detach(broken: bool) -> Training:
    """The generator's loss is computed on detached samples, so that no gradient reaches the generator."""
    noise = torch.randn(128, 8)
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    model = TransposedGenerator()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.5, 0.999))
    real = torch.ones(128, 1)
    ring = F.normalize(torch.randn(128, 2)) * 2
    schooling = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for _ in range(40):
        schooling.zero_grad()
        F.softplus(torch.cat([critic(model(noise).detach()), -critic(ring)])).mean().backward()
        schooling.step()
    critic.zero_grad()

    def loss(samples: Tensor, targets: Tensor) -> Tensor:
        judged = critic(samples.detach() if broken else samples)
        return F.binary_cross_entropy_with_logits(judged, targets)

    def success() -> float:
        with torch.no_grad():
            return 1 - loss(measures.outputs_in_eval(model, noise), real).item() / 0.6931

    return Training(model, (noise, real), loss, optimizer, success)
