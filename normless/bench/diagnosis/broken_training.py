"""Cases whose fault is in modes, norms, or the optimizer's settings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from normless.bench.diagnosis.cases import Patient, adamw, case, sgd
from normless.bench.diagnosis.networks import (
    Layer,
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    convolutions,
    images,
    mlp,
    sentences,
    vectors,
)


@case("evaluation_mode")
def left_in_eval() -> Patient:
    """`eval()` before training: batch norms normalize by their initial statistics."""
    net = ResidualNet(12).eval()
    return Patient(net, images(), sgd(net))


@case("evaluation_mode", aside=True)
def part_left_in_eval() -> Patient:
    """The backbone alone was set to evaluation, with statistics that never saw data."""
    net = nn.Sequential(convolutions(12), nn.ReLU(), nn.Linear(10, 10))
    net[0].eval()
    return Patient(net, images(), sgd(net))


@case("frozen_statistics")
def momentum_of_zero() -> Patient:
    """Batch norms with momentum 0: evaluation uses mean 0 and variance 1 for ever."""
    net = ResidualNet(norm=lambda width: nn.BatchNorm2d(width, momentum=0.0))
    return Patient(net, images(), sgd(net))


@case("frozen_statistics", aside=True)
def keras_momentum() -> Patient:
    """Another framework's momentum of 1e-4, whose statistics hardly move."""
    net = convolutions(4)
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1e-5
    return Patient(net, images(), sgd(net))


@case("zero_gamma", "dead_branch", "input_independent_outputs")
def gamma_of_zero() -> Patient:
    """Every norm of a plain network has γ = 0, which does not train."""
    net = convolutions(4)
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.requires_grad_(False).zero_()
    return Patient(net, images(), sgd(net))


@case("zero_gamma", "dead_branch", aside=True)
def frozen_gamma_of_branches() -> Patient:
    """Zero-initialized γ at the ends of branches, frozen with all norms."""
    net = ResidualNet(6)
    for block in net.blocks:
        nn.init.zeros_(block.bn2.weight)  # type: ignore[union-attr, arg-type]
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    return Patient(net, images(), sgd(net))


@case("heavy_dropout")
def dropout_of_keep_probability() -> Patient:
    """Dropout of 0.99, the share that another framework keeps."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.99), nn.Linear(128, 10))
    return Patient(net, images(), sgd(net))


@case("heavy_dropout", aside=True)
def heavy_dropout_everywhere() -> Patient:
    """Dropout of 0.9 after each of four layers."""
    net = mlp([64, 64, 64, 64, 64, 10], lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.95)))
    return Patient(net, images(), sgd(net))


@case("single_element_norm", "input_independent_outputs")
def instance_norm_of_one_pixel() -> Patient:
    """Instance norm after the images were averaged to one pixel: all zeros."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.GroupNorm(16, 16), nn.Flatten(), nn.Linear(16, 10)
    )
    return Patient(net, images(), sgd(net))


@case("single_element_norm", "input_independent_outputs", aside=True)
def layer_norm_of_one_feature() -> Patient:
    """A layer norm of a single feature, before a linear head."""
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.LayerNorm(1), nn.Linear(1, 3))
    return Patient(net, vectors(), adamw(net))


@case("mixes_examples")
def reshaped_over_the_batch() -> Patient:
    """A `view` in the place of a transpose: features of several examples share a row."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.mix, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            features = self.embedding(x.flatten(0, 2)).relu()
            rows = features.view(8, len(x), 32).mean(0)
            logits: Tensor = self.head(self.mix(rows).relu())
            return logits

    net = Net()
    return Patient(net, images(), sgd(net))


@case("mixes_examples", aside=True)
def attention_over_the_batch() -> Patient:
    """torch's attention without `batch_first`: the batch is taken for the sequence."""

    class Net(SentenceNet):
        def __init__(self) -> None:
            super().__init__(0)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0) for _ in range(2))

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            logits: Tensor = self.head(x.mean(1))
            return logits

    net = Net()
    return Patient(net, sentences(), adamw(net))


@case("mixes_examples")
def softmax_over_the_batch() -> Patient:
    """Attention weights that are normalized along the wrong axis."""

    class Across(Layer):
        def attention(self, x: Tensor, causal: bool) -> Tensor:
            query, key, value = self.qkv(x).chunk(3, -1)
            weights = (query @ key.transpose(1, 2) * self.scale).softmax(0)
            attended: Tensor = self.out(weights @ value)
            return attended

    net = SentenceNet(0)
    net.layers = nn.ModuleList(Across(32) for _ in range(2))
    return Patient(net, sentences(), adamw(net))


@case("small_batch")
def batch_of_two() -> Patient:
    """Batch norm with two examples."""
    net = ResidualNet(8)
    return Patient(net, images(2), sgd(net))


@case("small_batch", aside=True)
def batch_of_one() -> Patient:
    """Batch norm with one example, a segmentation of large images."""
    net = ResidualNet(8)
    return Patient(net, images(1), sgd(net, 0.01))


@case("rate_too_large")
def rate_of_twenty() -> Patient:
    """SGD at rate 20."""
    net = convolutions(4)
    return Patient(net, images(), sgd(net, 20.0))


@case("rate_too_large")
def adam_at_one() -> Patient:
    """AdamW at rate 1."""
    net = SentenceNet()
    return Patient(net, sentences(), adamw(net, 1.0))


@case("rate_too_large", aside=True)
def rate_without_norms() -> Patient:
    """A rate for batch norm with an MLP without."""
    net = mlp([64, 256, 256, 10])
    return Patient(net, images(), sgd(net, 5.0))


@case("rate_too_small")
def rate_of_a_millionth() -> Patient:
    """SGD at rate 1e-6."""
    net = ResidualNet()
    return Patient(net, images(), sgd(net, 1e-6))


@case("rate_too_small", aside=True)
def schedule_at_its_end() -> Patient:
    """AdamW after a schedule has taken its rate to 1e-9."""
    net = SentenceNet()
    return Patient(net, sentences(), adamw(net, 1e-9))


@case("effective_rate", "rate_too_large")
def momentum_near_one() -> Patient:
    """Momentum 0.999 at rate 0.5: an effective rate of 500."""
    net = mlp([64, 64, 64, 10])
    return Patient(net, images(), sgd(net, 0.5, momentum=0.999))


@case("effective_rate", "rate_too_large", aside=True)
def momentum_of_one() -> Patient:
    """Momentum 0.9999 at rate 2."""
    net = convolutions(3)
    return Patient(net, images(), sgd(net, 2.0, momentum=0.9999))


@case("excessive_decay")
def decay_of_five() -> Patient:
    """Weight decay 5 at rate 0.1: weights halve in every step."""
    net = mlp([64, 64, 64, 10])
    return Patient(net, images(), sgd(net, 0.1, momentum=0.0, weight_decay=5.0))


@case("excessive_decay", aside=True)
def decoupled_decay_of_hundreds() -> Patient:
    """AdamW's decay taken for Adam's and multiplied by 10⁵."""
    net = SentenceNet()
    return Patient(net, sentences(), adamw(net, 1e-3, weight_decay=500.0))


def clipped(optimizer: Optimizer, norm: float) -> Optimizer:
    """An optimizer that clips the norm of the whole gradient before each step."""

    def clip(optimizer: Optimizer, args: object, kwargs: object) -> None:
        clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], norm)

    optimizer.register_step_pre_hook(clip)
    return optimizer


@case("clipped_to_nothing", "rate_too_small")
def clipped_to_nothing() -> Patient:
    """The gradient's norm is clipped to 1e-6."""
    net = ResidualNet()
    return Patient(net, images(), clipped(sgd(net), 1e-6))


@case("clipped_to_nothing", "rate_too_small", aside=True)
def clipped_values() -> Patient:
    """A norm of 1e-5 where 1.0 was meant."""
    net = mlp([64, 64, 10])
    return Patient(net, images(), clipped(sgd(net, 0.1), 1e-5))


@case("lost_in_rounding", "rate_too_small")
def bfloat16_weights() -> Patient:
    """Weights in bfloat16: updates of less than 1/256 of a weight are lost."""
    x, y = images()
    net = ResidualNet().bfloat16()
    return Patient(net, (x.bfloat16(), y), sgd(net, 1e-4, momentum=0.0))


@case("lost_in_rounding", "rate_too_small", aside=True)
def half_precision_transformer() -> Patient:
    """The same of a transformer with AdamW at 1e-5."""
    net = SentenceNet().bfloat16()
    return Patient(net, sentences(), adamw(net, 1e-5))


@case("modes_differ")
def statistics_of_other_data() -> Patient:
    """Running statistics of images of 0 to 255, and images scaled to 1 since."""
    net = ResidualNet(norm=lambda width: nn.BatchNorm2d(width, momentum=0.5))
    x, y = images()
    with torch.no_grad():
        for _ in range(10):
            net(x * 100 + 200)
    return Patient(net, (x, y))


@case("modes_differ", aside=True)
def statistics_of_a_checkpoint() -> Patient:
    """A checkpoint loaded without its running variances, which are 1000 times too large."""
    net = convolutions(4)
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked.fill_(100)  # type: ignore[union-attr]
            layer.running_var.fill_(1e6)  # type: ignore[union-attr]
    return Patient(net, images())


@case("loss_of_scale", "vanishing_gradient", "rate_too_small", "lost_in_rounding")
def loss_of_a_ten_millionth() -> Patient:
    """A loss that was divided by the number of parameters, and by more."""
    net = RecurrentNet(nn.GRU)
    return Patient(net, sentences(), sgd(net), lambda logits, y: nn.functional.cross_entropy(logits, y) * 1e-7)
