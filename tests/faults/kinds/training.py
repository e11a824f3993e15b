"""Cases whose fault is in modes, norms, or the optimizer's settings."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from tests.faults.kinds.networks import (
    Block,
    Layer,
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    changed,
    convolutions,
    digits_mlp,
    images,
    mlp,
    of_layers,
    sentences,
    vectors,
)
from tests.faults.kinds.rows import MakeOptimizer, adamw, add, altered, case, each, sgd

# `eval()` before training: batch norms normalize by their initial statistics.
add("left_in_eval", lambda: ResidualNet(12).eval(), images, sgd(), "evaluation_mode")


# The backbone alone was set to evaluation, with statistics that never saw data.
half = altered(lambda: nn.Sequential(convolutions(12), nn.ReLU(), nn.Linear(10, 10)), lambda net: net[0].eval())
add("part_left_in_eval", half, images, sgd(), "evaluation_mode", aside=True)


def of_norms(build: Callable[[], nn.Module], change: Callable[[Any], object]) -> Callable[[], nn.Module]:
    """Builds a network and changes every batch norm of it."""
    return altered(build, lambda net: each(nn.BatchNorm2d, change, net))


def dropping(share: float) -> Callable[[], nn.Module]:
    """A ReLU, and dropout of a share."""
    return lambda: nn.Sequential(nn.ReLU(), nn.Dropout(share))


# Batch norms with momentum 0: evaluation uses mean 0 and variance 1 for ever.
still = lambda: ResidualNet(norm=lambda width: nn.BatchNorm2d(width, momentum=0.0))  # noqa: E731
add("momentum_of_zero", still, images, sgd(), "frozen_statistics")
# Another framework's momentum of 1e-4, whose statistics hardly move.
still = of_norms(lambda: convolutions(4), lambda norm: setattr(norm, "momentum", 1e-5))
add("keras_momentum", still, images, sgd(), "frozen_statistics", aside=True)

ZERO_GAMMA = ("zero_gamma", "dead_branch")
# Every norm of a plain network has γ = 0, which does not train; γ of zero at the ends of branches are frozen.
zero = of_norms(lambda: convolutions(4), lambda norm: norm.weight.requires_grad_(False).zero_())
add("gamma_of_zero", zero, images, sgd(), *ZERO_GAMMA, "input_independent_outputs")
ends = altered(lambda: ResidualNet(6), lambda net: each(Block, lambda block: nn.init.zeros_(block.bn2.weight), net))
frozen = of_norms(ends, lambda norm: norm.requires_grad_(False))
add("frozen_gamma_of_branches", frozen, images, sgd(), *ZERO_GAMMA, aside=True)

# Dropout of 0.99, the share that another framework keeps; of 0.95 after each of four layers.
kept = lambda: mlp([64, 128, 10], dropping(0.99))  # noqa: E731
add("dropout_of_keep_probability", kept, images, sgd(), "heavy_dropout")
add("heavy_dropout_everywhere", lambda: digits_mlp(4, dropping(0.95)), images, sgd(), "heavy_dropout", aside=True)


@case("single_element_norm", "input_independent_outputs", optimizer=sgd())
def instance_norm_of_one_pixel() -> nn.Module:
    """Instance norm after the images were averaged to one pixel: all zeros."""
    pooled = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*pooled, nn.GroupNorm(16, 16), nn.Flatten(), nn.Linear(16, 10))


@case("single_element_norm", "input_independent_outputs", batch=vectors, optimizer=adamw(), aside=True)
def layer_norm_of_one_feature() -> nn.Module:
    """A layer norm of a single feature, before a linear head."""
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.LayerNorm(1), nn.Linear(1, 3))


@case("mixes_examples", optimizer=sgd())
class ReshapedOverTheBatch(nn.Module):
    """A `view` in the place of a transpose: features of several examples share a row."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.embedding(x.flatten(0, 2)).relu()
        rows = features.view(8, len(x), 32).mean(0)
        return self.head(self.mix(rows).relu())


@case("mixes_examples", batch=sentences, optimizer=adamw(), aside=True)
class AttentionOverTheBatch(SentenceNet):
    """torch's attention without `batch_first`: the batch is taken for the sequence."""

    def __init__(self) -> None:
        super().__init__(0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Across(Layer):
    """Attention weights that are normalized along the wrong axis."""

    def attention(self, x: Tensor, causal: bool) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        weights = (query @ key.transpose(1, 2) * self.scale).softmax(0)
        return self.out(weights @ value)


add("attention_over_the_batch_axis", lambda: of_layers(Across), sentences, adamw(), "mixes_examples")

# Batch norm with two examples, and with one, as in a segmentation of large images.
add("batch_of_two", lambda: ResidualNet(8), lambda: images(2), sgd(), "small_batch")
add("batch_of_one", lambda: ResidualNet(8), lambda: images(1), sgd(0.01), "small_batch", aside=True)

add("rate_of_twenty", lambda: convolutions(4), images, sgd(20.0), "rate_too_large")
add("adam_at_one", SentenceNet, sentences, adamw(1.0), "rate_too_large")
# A rate for batch norm with an MLP without.
add("rate_without_norms", lambda: mlp([64, 256, 256, 10]), images, sgd(5.0), "rate_too_large", aside=True)
add("rate_of_a_millionth", ResidualNet, images, sgd(1e-6), "rate_too_small")
# AdamW after a schedule has taken its rate to 1e-9.
add("schedule_at_its_end", SentenceNet, sentences, adamw(1e-9), "rate_too_small", aside=True)

# Effective rates of 500 and 20,000.
EFFECTIVE = ("effective_rate", "rate_too_large")
add("momentum_near_one", digits_mlp, images, sgd(0.5, momentum=0.999), *EFFECTIVE)
add("momentum_of_one", lambda: convolutions(3), images, sgd(2.0, momentum=0.9999), *EFFECTIVE, aside=True)

# Weight decay 5 at rate 0.1: weights halve in every step.
add("decay_of_five", digits_mlp, images, sgd(0.1, momentum=0.0, weight_decay=5.0), "excessive_decay")
# AdamW's decay taken for Adam's and multiplied by 10⁵.
add("decoupled_decay_of_hundreds", SentenceNet, sentences, adamw(weight_decay=500.0), "excessive_decay", aside=True)


def clipped(make: MakeOptimizer, norm: float) -> MakeOptimizer:
    """Of an optimizer that clips the norm of the whole gradient before each step."""

    def clip(optimizer: Optimizer, *_: object) -> None:
        clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], norm)

    def made(model: nn.Module) -> Optimizer:
        optimizer = make(model)
        optimizer.register_step_pre_hook(clip)
        return optimizer

    return made


CLIPPED = ("clipped_to_nothing", "rate_too_small")
add("clipped_to_nothing", ResidualNet, images, clipped(sgd(), 1e-6), *CLIPPED)
# A norm of 1e-5 where 1.0 was meant.
add("clipped_values", lambda: mlp([64, 64, 10]), images, clipped(sgd(0.1), 1e-5), *CLIPPED, aside=True)

# Weights in bfloat16: updates of less than 1/256 of a weight are lost.
ROUNDED = ("lost_in_rounding", "rate_too_small")
halves = changed(images, Tensor.bfloat16)
add("bfloat16_weights", lambda: ResidualNet().bfloat16(), halves, sgd(1e-4, momentum=0.0), *ROUNDED)
add("half_precision_transformer", lambda: SentenceNet().bfloat16(), sentences, adamw(1e-5), *ROUNDED, aside=True)


def of_bytes(net: nn.Module) -> None:
    """Averages the statistics of images of 0 to 255."""
    for _ in range(10):
        net(images()[0] * 100 + 200)


def load(norm: nn.BatchNorm2d) -> None:
    """Loads a checkpoint without its running variances, which are a million times too large."""
    norm.num_batches_tracked.fill_(100)
    norm.running_var.fill_(1e6)


# Running statistics of images of 0 to 255, and images scaled to 1 since.
averaging = lambda: ResidualNet(norm=lambda width: nn.BatchNorm2d(width, momentum=0.5))  # noqa: E731
add("statistics_of_other_data", altered(averaging, of_bytes), images, None, "modes_differ")
add("statistics_of_a_checkpoint", of_norms(lambda: convolutions(4), load), images, None, "modes_differ", aside=True)


def scaled_down(logits: Tensor, targets: Tensor) -> Tensor:
    """A loss that was divided by the number of parameters, and by more."""
    return F.cross_entropy(logits, targets) * 1e-7


SMALL_LOSS = ("loss_of_scale", "vanishing_gradient", "rate_too_small", "lost_in_rounding")
add("loss_of_a_ten_millionth", lambda: RecurrentNet(nn.GRU), sentences, sgd(), *SMALL_LOSS, loss=scaled_down)
