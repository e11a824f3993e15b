"""What holds of every conversion, whatever the network and the scheme."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from gallery.row import squares
from torch import nn

import normless as nl
from benchmarks.census import checks
from benchmarks.census.operators import count_operators
from matrix.case import TOLERANCES, Case, changed, difference, state_of
from normless._internal.copying import copied
from normless.errors import AlreadyConvertedError
from normless.residual._shared import with_shared_once

RATES = {"lr": 0.1, "weight_decay": 1e-4}
Property = Callable[[Case], None]
PROPERTIES: dict[str, tuple[Property, bool]] = {}


def holds_for_all(*, slow: bool = False) -> Callable[[Property], Property]:
    """Enter a check that every conversion must pass."""

    def enter(check: Property) -> Property:
        PROPERTIES[check.__name__] = (check, slow)
        return check

    return enter


def property_names(*, slow: bool) -> Iterator[str]:
    """The names of the checks, without the slow ones or with them alone."""
    yield from (name for name, (_, is_slow) in PROPERTIES.items() if is_slow == slow)


@holds_for_all()
def plan_is_the_conversion(case: Case) -> None:
    """A plan made without values lists the changes of the conversion, and every change is under one of its paths."""
    net, model = case.net, case.subject.model
    inputs, kwargs = case.subject.inputs, case.subject.kwargs
    torch.manual_seed(2)
    planned = nl.plan(model, case.scheme.text, *inputs, residual_map=case.subject.found, **kwargs)
    assert [*map(str, planned)] == [*map(str, net.normless.plan)]  # type: ignore[union-attr]
    if any(not change.path for change in planned):
        return
    # `MODULE:NAME` is in the forward code of the module, `BLOCK#2` the second run of a block, `forward#NAME` a block
    # in that of the network.
    paths = {change.path.partition("#")[0].partition(":")[0] for change in planned}
    paths = {"" if path == "forward" else path for path in paths}
    before, after = model.state_dict(), net.state_dict()
    kept = {name for name in before if name in after and torch.equal(before[name], after[name])}
    # What has several names is listed by the first.
    first: dict[str, str] = {}
    for names in (net.named_parameters, net.named_buffers, model.named_parameters, model.named_buffers):
        known = {id(value): name for name, value in names()}
        first |= {name: known[id(value)] for name, value in names(remove_duplicate=False)}
    # The bias before a layer may be stored as that after the activation before it.
    stored = {name for name in after if name.endswith(".output_bias")}
    for name in {first.get(name, name) for name in {*before, *after} - kept - stored}:
        assert any(not path or name == path or name.startswith(f"{path}.") for path in paths), name


@holds_for_all()
def nothing_of_the_original_changes(case: Case) -> None:
    """The original keeps all of its state and shares nothing with the conversion, which is made anew from a seed."""
    model, net = case.subject.model, case.net
    before = state_of(model)
    again = case.subject.convert(case.scheme.text)
    # Schemes that draw weights take random numbers.
    assert set(changed(before, state_of(model))) <= {"torch's random state"}
    assert not {id(one) for one in model.parameters()} & {id(one) for one in again.parameters()}
    assert all(module.training for module in again.modules())
    assert difference(_values(again), _values(net)) < 1e-5
    # A scheme without edits leaves the network as it was, which may be converted.
    if nl.scheme(case.scheme.text).edits:
        with pytest.raises(AlreadyConvertedError):
            nl.convert(again, "none", *case.subject.inputs, **case.subject.kwargs)


def _values(net: nn.Module) -> list[torch.Tensor]:
    return [value for value in net.state_dict().values() if value.is_floating_point()]


@holds_for_all()
def scalars_are_those_of_the_paper(case: Case) -> None:
    """The parameters that are added are multipliers and scalar biases where the scheme's paper says so."""
    if not case.scheme.adds and not case.scheme.text.startswith(("none", "xavier", "sqrt2", "lsuv")):
        return
    before, after = dict(case.subject.model.named_parameters()), dict(case.net.named_parameters())
    added = {name.rpartition(".")[2] for name in after if name not in before}
    # The parts of a module that was wrapped have other paths.
    added -= {name.rpartition(".")[2] for name in before}
    if case.subject.found.blocks:
        assert added <= case.scheme.adds | {"threshold"}, added
        if "multiplier" in case.scheme.adds:
            blocks = with_shared_once(case.subject.found.without_global_skips()).blocks
            count = sum(name.endswith("multiplier") for name in after)
            assert count == sum(len(block.branches) for block in blocks)


@holds_for_all()
def no_norm_of_the_trunk_runs(case: Case) -> None:
    """Operators of normalization on activations, counted where torch dispatches them, in both modes."""
    if not case.scheme.bare or case.subject.found.directions:
        return
    net = case.net
    for mode in (True, False):
        counted = count_operators(net.train(mode), case.subject.inputs, case.subject.kwargs)
        assert not counted.norms, f"{dict(counted.norms)} run in {'training' if mode else 'evaluation'}"


@holds_for_all()
def both_modes_are_finite_and_every_parameter_has_a_gradient(case: Case) -> None:
    """Outputs, loss and gradients are finite; only what the original does not read has no gradient."""
    net, model = case.net, copied(case.subject.model)
    loss = case.subject.loss(net)
    assert loss.isfinite()
    if case.scheme.text.startswith("fixup") and loss.requires_grad:
        assert loss < 30
    loss.backward()
    case.subject.loss(model).backward()
    unread = {name for name, one in model.named_parameters() if one.grad is None}
    read = {name for name, one in model.named_parameters() if one.grad is not None}
    for name, parameter in net.named_parameters():
        if parameter.grad is None:
            around = [name[:at] for at, letter in enumerate(name) if letter == "."]
            dead = any(
                any(other.startswith(f"{path}.") for other in unread)
                # The last sum of a trunk may be unread where what the block computes besides is not.
                and (f"{path}.residual_sum" in around or not any(other.startswith(f"{path}.") for other in read))
                for path in around
            )
            assert name in unread or dead, f"{name} has no gradient"
        else:
            assert parameter.grad.isfinite().all(), name
    with torch.no_grad():
        assert all(part.isfinite().all() for part in case.subject.run(net.eval()))


@holds_for_all()
def every_parameter_learns(case: Case) -> None:
    """Within a few steps each gets a gradient, but for those on which the loss does not depend at all.

    Those have none either where no weight is zero.
    """
    dtype, net = case.subject.dtype, case.net.to(case.subject.dtype)
    where = case.opened().to(dtype)
    case.subject.loss(where, dtype).backward()
    depends = {name for name, one in where.named_parameters() if one.grad is not None and one.grad.abs().max() > 1e-9}
    optimizer, learning = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), set[str]()
    for _ in range(6):
        optimizer.zero_grad()
        loss = case.subject.loss(net, dtype)
        assert loss.isfinite()
        loss.backward()
        optimizer.step()
        learning |= {name for name, one in net.named_parameters() if one.grad is not None and one.grad.any()}
        if depends <= learning:
            break
    assert depends <= learning, f"{sorted(depends - learning)} get no gradient"


@holds_for_all()
def a_batch_computes_what_its_examples_compute(case: Case) -> None:
    """In evaluation; and in training where the scheme takes no statistics of the batch, gradients accumulate."""
    subject = case.subject
    if not subject.is_per_example:
        return
    net = case.opened().to(subject.dtype)
    assert not (gap := subject.mixes(net.eval())), f"in evaluation {gap}"
    if case.scheme.alone and not subject.varies:
        assert not (gap := subject.mixes(net.train())), f"in training {gap}"
        whole, parts = _gradients(case, net, 1), _gradients(case, net, 2)
        assert whole.keys() == parts.keys()
        for name, gradient in whole.items():
            assert difference([parts[name]], [gradient]) < max(10 * TOLERANCES[subject.dtype], case.row.rounding), (
                name
            )


def _gradients(case: Case, net: nn.Module, parts: int) -> dict[str, torch.Tensor]:
    """The gradients of the mean square of all outputs, accumulated over parts of the batch."""
    net.zero_grad()
    size = case.subject.batch // parts
    for part in range(parts):
        squares(case.subject.run(net, case.subject.dtype, slice(part * size, (part + 1) * size))).div(
            parts
        ).backward()
    return {name: one.grad.clone() for name, one in net.named_parameters() if one.grad is not None}


@holds_for_all()
def branches_are_shut_at_the_start(case: Case) -> None:
    """Where every block starts as its skip path, what a branch holds ahead of its zero has no effect on the outputs.

    Where something else reads what a branch has computed halfway, only the layers at the ends are asked.
    """
    mapped, model = case.subject.found.without_global_skips(), case.subject.model
    if not case.scheme.shut or not mapped.blocks:
        return
    net, given = case.net.eval(), checks.Given(case.subject.inputs, case.subject.kwargs)
    before = dict(model.named_parameters())
    zeroed = {
        name.rpartition(".")[0]
        for name, one in net.named_parameters()
        if name in before and not one.any() and before[name].any()
    }
    branches = [
        {
            name
            for name in checks.every_name(model, checks.branch_parameters(mapped, ends=ends))
            if name.rpartition(".")[0] not in zeroed
        }
        for ends in (False, True)
    ]
    # A classifier of zeros would hide them.
    with checks.changed(net, set(before) - checks.every_name(model, checks.branch_parameters(mapped))):
        effects = [checks._effect(net, given, names) for names in branches]
    assert any(not effect for effect in effects), f"branch weights change the output by {effects}"


@holds_for_all()
def copies_compute_the_same(case: Case) -> None:
    """`deepcopy`, and a state dict in a network converted anew; a copy's parameters are its own."""
    net = case.opened().eval()
    with torch.no_grad():
        expected = case.subject.run(net)
        try:
            twin = deepcopy(net)
        except RuntimeError:
            # torch's old weight norm and spectral norm keep a weight that is no leaf.
            twin = copied(net)
        assert difference(case.subject.run(twin), expected) == 0
        again = case.subject.convert(case.scheme.text).eval()
        again.load_state_dict(net.state_dict())
        assert difference(case.subject.run(again), expected) < 1e-6
        for parameter in twin.parameters():
            parameter.zero_()
        assert difference(case.subject.run(net), expected) == 0


@holds_for_all()
def groups_partition_the_parameters(case: Case) -> None:
    """Every trainable parameter is in one group, and once."""
    net = case.net
    listed = [id(one) for group in nl.param_groups(net, **RATES) for one in group["params"]]
    assert sorted(listed) == sorted(id(one) for one in net.parameters() if one.requires_grad)


@holds_for_all()
def autocast_is_close(case: Case) -> None:
    """In bfloat16 outputs are finite, near those in float32, and gradients arrive."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            case.subject.run(copied(case.subject.model).eval())
        except RuntimeError:
            # torch.lerp and others take one type alone.
            return
    net = case.opened().eval()
    exact = case.subject.run(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = case.subject.run(net)
    assert [part.shape for part in rounded] == [part.shape for part in exact]
    for one, other in zip(rounded, exact, strict=True):
        assert one.isfinite().all()
        assert (one.float() - other).norm() <= 0.15 * other.norm() + 1e-2


@holds_for_all()
def at_one_it_is_the_network_without_norms(case: Case) -> None:
    """With multipliers of 1 and the weights as they were, skipinit computes what `none` does."""
    if case.scheme.text != "skipinit(alpha=1)":
        return
    ours, theirs = (
        case.subject.convert(f"{scheme}keep_scale=False)").to(case.subject.dtype).eval()
        for scheme in ("skipinit(alpha=1, ", "none(")
    )
    found, expected = (case.subject.run(net, case.subject.dtype) for net in (ours, theirs))
    assert difference(found, expected) < max(TOLERANCES[case.subject.dtype], case.row.rounding)


@holds_for_all()
def types_and_memory_orders(case: Case) -> None:
    """In double precision the outputs are those in single precision; images may be stored with channels last."""
    if case.subject.dtype != torch.float64:
        return
    net = case.opened().eval()
    with torch.no_grad():
        expected = case.subject.run(net)
        exact = case.subject.run(net.double(), torch.float64)
        assert difference(expected, exact) < max(1e-2, case.row.rounding)
        if any(one.dim() > 4 for one in net.parameters()):
            return
        last = case.subject.run(net.to(memory_format=torch.channels_last), torch.float64)
        assert difference(last, exact) < max(1e-8, case.row.rounding)


@holds_for_all()
def saved_and_loaded(case: Case) -> None:
    """`pickle`, and `nl.save` and `nl.load` into the original, give the function of the conversion."""
    net = case.opened().eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        expected = case.subject.run(net)
        nl.save(net, folder, example_inputs=case.subject.kwargs or case.subject.inputs)
        loaded = nl.load(folder, copied(case.subject.model)).eval()
        assert difference(case.subject.run(loaded), expected) < 1e-6
        try:
            written = pickle.dumps(net)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
            # A function of a row's forward code without a name; a parametrized module.
            return
        assert difference(case.subject.run(pickle.loads(written)), expected) == 0


@holds_for_all(slow=True)
def the_map_stays_the_same(case: Case) -> None:
    """The map of the conversion, traced anew, has the blocks of the original."""
    net = case.net
    found = nl.residual_map(net, *case.subject.inputs, **case.subject.kwargs)
    if case.scheme.bare and case.scheme.name not in ("remove_branches", "dyt", "derf"):
        assert not (said := checks.same_blocks(found, case.subject.found)), said
        assert not found.norms


@holds_for_all(slow=True)
def compiled(case: Case) -> None:
    """The compiler gives the outputs and gradients of the network."""
    net = case.opened()
    expected = case.subject.run(copied(net))
    torch.compiler.reset()
    found = case.subject.run(torch.compile(net, backend="aot_eager"))  # type: ignore[arg-type]
    assert difference(found, expected) < max(1e-3, case.row.rounding)
    squares(found).backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in net.parameters())


@holds_for_all(slow=True)
def exported(case: Case) -> None:
    """torch's exporter gives a program that computes the same."""
    net = case.opened().eval()
    program = torch.export.export(net, case.subject.inputs, case.subject.kwargs, strict=False)
    assert difference(case.subject.run(program.module()), case.subject.run(net)) < 1e-4


@holds_for_all(slow=True)
def onnx(case: Case) -> None:
    """The file in ONNX gives the outputs in the runtime of ONNX."""
    runtime = pytest.importorskip("onnxruntime")
    if case.subject.kwargs or any(not isinstance(value, torch.Tensor) for value in case.subject.inputs):
        return
    net, names = case.opened().eval(), [f"input{number}" for number in range(len(case.subject.inputs))]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/net.onnx"
        torch.onnx.export(net, case.subject.inputs, path, input_names=names, dynamo=True, verbose=False)
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        given = dict(zip(names, (value.numpy() for value in case.subject.inputs), strict=True))
        found = [torch.from_numpy(value) for value in session.run(None, given)]
    with torch.no_grad():
        expected = case.subject.run(net)
    assert difference([part for part in found if part.is_floating_point()], expected) < 1e-3
