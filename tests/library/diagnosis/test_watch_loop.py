"""Faults of the loop that a watch names, and loops that look alike and are right."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, StepLR
from watched import Run, batch, kinds

import normless as nl

pytestmark = pytest.mark.filterwarnings("ignore::normless.WatchWarning")


def simple(
    *,
    zero: bool = True,
    late_zero: bool = False,
    step: bool = True,
    steps: int = 100,
    set_to_none: bool = True,
    every: int = 1,
    optimizer: Callable[[nn.Module], Optimizer] = lambda model: SGD(model.parameters(), lr=0.05),
    schedule: Callable[[Optimizer], LRScheduler] | None = None,
    between: Callable[[nn.Module, int], None] = lambda *_: None,
    anew: bool = False,
) -> Run:
    def run(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        chosen = optimizer(model)
        scheduler = None if schedule is None else schedule(chosen)
        for index in range(1, steps + 1):
            chosen = optimizer(model) if anew else chosen
            (loss() / every).backward()
            if late_zero:
                chosen.zero_grad(set_to_none)
            if step and index % every == 0:
                chosen.step()
                if scheduler is not None:
                    scheduler.step()
            if zero and index % every == 0:
                chosen.zero_grad(set_to_none)
            between(model, index)

    return run


def validated(restore: bool, *, once: bool = False) -> Callable[[nn.Module, int], None]:
    average: dict[str, Tensor] = {}

    def between(model: nn.Module, index: int) -> None:
        average.update({} if average else copy.deepcopy(model.state_dict()))
        for name, value in model.state_dict().items():
            average[name].lerp_(value, 0.01)
        if index % 10 == 0 and (index == 50 or not once):
            trained = copy.deepcopy(model.state_dict())
            model.load_state_dict(average)
            if restore:
                model.load_state_dict(trained)

    return between


def reset(model: nn.Module, index: int) -> None:
    if index % 10 == 0:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()


def evaluated(train: bool) -> Callable[[nn.Module, int], None]:
    def between(model: nn.Module, index: int) -> None:
        if index % 10 == 0:
            model.eval()
            with torch.no_grad():
                model(batch()[0])
            model.train(train)

    return between


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (simple(zero=False), ["kept_gradients"]),
        (simple(late_zero=True), ["cleared_gradients"]),
        (simple(late_zero=True, set_to_none=False), ["cleared_gradients"]),
        (simple(step=False), ["never_stepped"]),
        (simple(step=False, zero=False), ["never_stepped"]),
        (simple(anew=True, optimizer=lambda model: Adam(model.parameters(), lr=1e-3)), ["lost_state"]),
        (simple(between=validated(restore=False)), ["set_back"]),
        (simple(between=reset), ["set_back"]),
        (simple(schedule=lambda chosen: StepLR(chosen, 5)), ["early_decay"]),
        (simple(schedule=lambda chosen: LambdaLR(chosen, lambda step: 0.0)), ["zero_rate"]),
        (simple(schedule=lambda chosen: LambdaLR(chosen, lambda step: 1e-4), steps=110), ["unstarted_warm_up"]),
        (simple(schedule=lambda chosen: LinearLR(chosen, 1.0, 0.0, 20)), ["zero_rate"]),
    ],
)
def test_faults_of_the_loop(run: Run, said: list[str]) -> None:
    assert kinds(run) == said


@pytest.mark.parametrize(
    "run",
    [
        simple(),
        simple(set_to_none=False),
        simple(every=4),
        simple(every=4, set_to_none=False),
        simple(anew=True),
        simple(between=validated(restore=True)),
        simple(between=validated(restore=False, once=True)),
        simple(schedule=lambda chosen: StepLR(chosen, 50)),
        simple(schedule=lambda chosen: CosineAnnealingLR(chosen, 100)),
        simple(schedule=lambda chosen: LambdaLR(chosen, lambda step: min(1.0, step / 15))),
        simple(schedule=lambda chosen: LinearLR(chosen, 1.0, 0.0, 95)),
    ],
)
def test_loops_that_look_alike_and_are_right(run: Run) -> None:
    assert kinds(run) == []


@pytest.mark.parametrize(("train", "frozen", "said"), [(False, False, 1), (True, False, 0), (False, True, 0)])
def test_evaluation_mode_that_is_left_on(train: bool, frozen: bool, said: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    model[1].requires_grad_(not frozen)
    found = kinds(simple(steps=40, between=evaluated(train)), model)
    assert found.count("left_in_evaluation") == said


def test_a_gradient_of_zero_and_a_loss_of_zero() -> None:
    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).round()

    assert kinds(simple(steps=20), nn.Sequential(Rounded(20, 8), nn.Linear(8, 3))) == []
    assert kinds(simple(steps=20), Rounded(20, 3)) == ["zero_gradients"]

    def separated(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            (loss() * 0).backward()
            optimizer.step()

    def without_loss(model: nn.Module, _: Callable[[], Tensor]) -> None:
        separated(model, lambda: model(batch()[0]).square().mean())

    assert kinds(without_loss) == []


def test_weights_that_are_masked_clamped_or_decayed_by_hand() -> None:
    torch.manual_seed(0)
    masks = [torch.rand(32, 20) > 0.9, torch.rand(32, 32) > 0.9, torch.rand(3, 32) > 0.9]

    def masked(model: nn.Module, _: int) -> None:
        for layer, mask in zip((model[0], model[2], model[4]), masks, strict=True):
            layer.weight.data.mul_(mask)

    def clamped(model: nn.Module, _: int) -> None:
        for weight in model.parameters():
            weight.data.clamp_(-0.01, 0.01)

    def decayed(model: nn.Module, _: int) -> None:
        for weight in model.parameters():
            weight.data.mul_(0.9)

    for between in (masked, clamped, decayed):
        assert "set_back" not in kinds(simple(steps=60, between=between))


def test_a_discriminator_that_also_gets_the_generators_gradients() -> None:
    torch.manual_seed(0)
    generator = nn.Linear(4, 20)
    ours = AdamW(generator.parameters(), lr=1e-3)

    def run(model: nn.Module, _: Callable[[], Tensor]) -> None:
        theirs = AdamW(model.parameters(), lr=1e-3)
        for _ in range(40):
            theirs.zero_grad()
            fake = generator(torch.randn(8, 4))
            (model(batch()[0]).mean() - model(fake.detach()).mean()).square().backward()
            theirs.step()
            ours.zero_grad()
            model(fake).mean().backward()
            ours.step()

    assert kinds(run) == []


def test_closures_clipping_and_graphs_that_are_used_twice() -> None:
    def closure(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

        def run() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(15):
            optimizer.step(run)

    def clipped(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer = Adam(model.parameters(), lr=1e-3)
        for _ in range(40):
            optimizer.zero_grad()
            value = loss()
            value.backward(retain_graph=True)
            value.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    def by_hand(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        for _ in range(40):
            loss().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    assert weight.grad is not None
                    weight -= 0.05 * weight.grad
                    weight.grad = None

    def scaled(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer, scaler = Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")
        for _ in range(40):
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            scaler.step(optimizer)
            scaler.update()

    for run in (closure, clipped, by_hand, scaled):
        assert kinds(run) == []


def test_parts_that_are_trained_by_other_outputs() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.first, self.second, self.direct = (nn.Linear(20, 20) for _ in range(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.body(x)
            return self.first(x), self.second(x)

    def run(model: nn.Module, _: Callable[[], Tensor]) -> None:
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            x, _ = batch()
            first, second = model(x)
            (first.square().mean() + second.square().mean() + model.direct(x).square().mean()).backward()
            optimizer.step()

    torch.manual_seed(0)
    assert kinds(run, Heads()) == []


def clipping(*, late: bool = False, bound: float = 0.1, scale: float = 1.0, twice: bool = False) -> Run:
    def run(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer = SGD(model.parameters(), lr=0.05)
        for _ in range(45):
            optimizer.zero_grad()
            (scale * loss()).backward()
            if not late:
                clip_grad_norm_(model.parameters(), bound)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(scale)
            optimizer.step()
            if late or twice:
                clip_grad_norm_(model.parameters(), bound)

    return run


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (clipping(late=True), ["clipped_late"]),
        (clipping(), []),
        (clipping(twice=True), []),
        (clipping(late=True, bound=100.0), []),
        (clipping(scale=65536.0), ["clipped_tiny"]),
        (clipping(scale=65536.0, bound=1e4), []),
    ],
)
def test_gradients_that_are_clipped_late_or_before_they_are_unscaled(run: Run, said: list[str]) -> None:
    assert kinds(run) == said


def test_parts_that_no_optimizer_holds() -> None:
    def replaced(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer = SGD(model.parameters(), lr=0.05)
        model[4] = nn.Linear(32, 3)  # type: ignore[operator]
        for _ in range(65):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    def by_two(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        body, head = SGD(list(model.parameters())[:4], lr=0.05), SGD(list(model.parameters())[4:], lr=0.05)
        for index in range(65):
            model.zero_grad()
            loss().backward()
            body.step()
            if index % 10 == 9:
                head.step()

    def by_hand(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        *body, weight, bias = model.parameters()
        optimizer = SGD(body, lr=0.05)
        for _ in range(65):
            model.zero_grad()
            loss().backward()
            optimizer.step()
            with torch.no_grad():
                weight.sub_(0.05 * weight.grad)  # type: ignore[operator]
                bias.sub_(0.05 * bias.grad)  # type: ignore[operator]

    assert kinds(replaced) == ["untrained_parameters"]
    assert kinds(by_two) == kinds(by_hand) == []


def test_optimizers_that_step_during_the_backward_pass() -> None:
    torch.manual_seed(0)
    networks = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        watch = nl.watch(model, 5) if is_watched else None
        optimizers = {weight: SGD([weight], lr=0.05, momentum=0.9) for weight in model.parameters()}

        def step(weight: Tensor, optimizers: dict[nn.Parameter, SGD] = optimizers) -> None:
            optimizer = optimizers[weight]  # type: ignore[index]
            optimizer.step()
            optimizer.zero_grad()

        for weight in optimizers:
            weight.register_post_accumulate_grad_hook(step)
        for _ in range(30):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
        networks.append(model.state_dict())
        assert watch is None or (watch.messages, watch.step) == ((), 30)
    assert all(torch.equal(value, networks[1][name]) for name, value in networks[0].items())


@pytest.mark.parametrize(("divisor", "rate", "said"), [(1, 1.0, 1), (8, 1.0, 0), (1, 0.01, 0)])
def test_passes_that_are_summed(divisor: int, rate: float, said: int) -> None:
    def run(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer = SGD(model.parameters(), lr=rate, momentum=0.9)
        for _ in range(60):
            for _ in range(8):
                (loss() / divisor if divisor > 1 else loss()).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert kinds(run).count("summed_passes") == said
