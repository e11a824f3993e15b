"""Converted networks on the Hugging Face hub: weights, recipe and model card; no downloaded code is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, snapshot_download
from torch import nn

from normless import schemes
from normless._version import __version__
from normless.conversion import CONVERSION, Conversion, scheme_of
from normless.edits import EDITS
from normless.errors import RecipeError, UnresolvedStructureError
from normless.integrations import pretrained
from normless.models.network_class import is_class
from normless.models.spec import ZOOS, Inputs
from normless.models.text_classifier import TRANSFORMERS, is_path
from normless.optim.roles import parameter_roles
from normless.residual import ResidualMap, residual_map
from normless.saving import load, read_recipe, save
from normless.spec import RECIPE_FILE, parse_call, split_source, split_terms

_FILES = (RECIPE_FILE, "*.safetensors")
# Settings of transformers' configurations that hold labels and prompts.
_WORDS = ("id2label", "task_specific_params")
_FILES_OF_TIMM = ("checkpoint_path", "file")
_CODE = "its code is not a part of the libraries and schemes that are installed here"


class HubNetwork(ModelHubMixin):
    """A converted, folded or frozen network with the methods of huggingface_hub's mixin.

        HubNetwork(net, "torchvision:resnet50").push_to_hub("me/resnet50-skipinit")
        net = HubNetwork.from_pretrained("me/resnet50-skipinit").network

    `save_pretrained` and `push_to_hub` write the files of `normless.save`, and a model card with the scheme, its
    changes, the roles of the parameters, the versions and the call that loads the network. Options in
    `model_card_kwargs` are fields of huggingface_hub's `ModelCardData`, such as license, and `description`, a text.

    Args:
        network: as in `normless.save`.
        model: text that names a network of torchvision, timm, transformers or normless before its conversion, as in
            `normless.save`. None for a network of your own, which `from_pretrained` is then given; networks that were
            created by transformers name themselves.
        example_inputs: as in `normless.save`.

    Raises:
        RecipeError: `model` or the scheme names a file or a module, which the hub would not have.
    """

    def __init__(self, network: nn.Module, model: str | None = None, *, example_inputs: Inputs | None = None) -> None:
        # What the mixin would write to config.json.
        self._hub_mixin_config = None
        self.network: nn.Module = getattr(network, "_orig_mod", network)  # what torch.compile wraps
        self.model, self.example_inputs = model, example_inputs
        if elsewhere := _elsewhere(model, scheme_of(network)):
            raise RecipeError(
                f"Expected a network and a scheme that load without code of your own, got {elsewhere}. Leave the "
                "model out and pass it to HubNetwork.from_pretrained(…, model=…); a scheme of your own is shared by "
                "normless.save, together with its file."
            )

    @classmethod
    def from_pretrained(  # The mixin would take further options from a downloaded file.
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        model: str | nn.Module | None = None,
        example_inputs: Inputs | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a network from the hub, or from a folder, on the CPU and in the mode in which it was saved.

        Only the recipe and weights in safetensors are downloaded, and no code that they name is run unless it is a
        network of an installed library, or a scheme or edit that is registered by an installed package.

        Args:
            pretrained_model_name_or_path: the name of the repository, or a folder.
            model: as in `normless.load`: the network before its conversion, in place of that in the recipe.
            example_inputs: as in `normless.load`.
            revision: a branch, tag or commit.
            options: token, cache_dir, force_download and local_files_only, as of huggingface_hub's
                `snapshot_download`.

        Raises:
            RecipeError: the recipe names other code, or as in `normless.load`.
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            name = str(pretrained_model_name_or_path)
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES), **options))
        recipe = read_recipe(folder)
        if elsewhere := _elsewhere(recipe.model if model is None else None, recipe.scheme):
            raise RecipeError(
                f"The recipe of {pretrained_model_name_or_path} names {elsewhere}: {_CODE}, so it was not run. If it "
                "is the model, pass it as model=…; if you trust the files, normless.load runs what they name."
            )
        text = recipe.model if model is None else model
        names_itself = not isinstance(text, str) or _is_class_of_transformers(text) or _elsewhere(text, None)
        return cls(load(folder, model, example_inputs=example_inputs), None if names_itself else str(text))

    def generate_model_card(self, *, description: str = "", **data: Any) -> ModelCard:
        """Return the model card; `data` are fields of `ModelCardData`."""
        tags = sorted({"normless", "pytorch", "residual-network", *(data.pop("tags", None) or [])})
        fields = ModelCardData(**{"library_name": "normless"} | data, tags=tags)
        return ModelCard(f"---\n{fields.to_yaml()}\n---\n\n{self._text(description)}")

    def _save_pretrained(self, save_directory: Path) -> None:
        if self.model is None and hasattr(self.network, "save_pretrained"):
            pretrained.save_pretrained(self.network, save_directory)
        else:
            save(self.network, save_directory, self.model, example_inputs=self.example_inputs)

    def _text(self, description: str) -> str:
        """Return the text of the card below its data."""
        scheme = scheme_of(self.network)
        text = self.model or pretrained.text_of(self.network)
        name = getattr(type(self.network), "normless_original", type(self.network)).__name__
        source = name if self.model is None else f"`{self.model}`"
        what = f"converted by `{scheme}`" if scheme else "with its trained norms folded or frozen"
        call = f'HubNetwork.from_pretrained("OWNER/NAME"{"" if text else ", model=network"}).network'
        given = "" if text else f"network = …  # the {name} before its conversion\n"
        lines = [
            f"# {source}, {what}",
            *([description] if description else []),
            f"A residual network that was {what} with normless {__version__}.",
            "## How to load it",
            f"```python\nfrom normless.integrations import HubNetwork\n\n{given}net = {call}\n```",
            "The weights are read from safetensors; no code of this repository is run.",
            *_described(self.network),
        ]
        return "\n\n".join(lines) + "\n"


def _described(network: nn.Module) -> Iterator[str]:
    """Describe what the conversion changed, and the parameters by role."""
    made = getattr(network, CONVERSION, None)
    if isinstance(made, Conversion):
        counts = Counter(change.edit for change in made.plan)
        rows = [(f"`{edit}`", count, _summary(edit)) for edit, count in counts.items()]
        yield "## What the scheme changed"
        yield _table(("edit", "places", "what it does"), rows)
    # A folded network carries no example inputs, and a map may need them.
    try:
        blocks = residual_map(network)
    except UnresolvedStructureError:
        return
    yield "## Parameters"
    yield f"{blocks.depth} residual blocks; {_norms(blocks)}."
    sizes: dict[str, list[int]] = {}
    named = dict(network.named_parameters())
    for name, role in parameter_roles(network, blocks).items():
        sizes.setdefault(role, []).append(named[name].numel())
    yield _table(("role", "tensors", "numbers"), [(role, len(own), f"{sum(own):,}") for role, own in sizes.items()])


def _summary(edit: str) -> str:
    """Return the first line of an edit's documentation."""
    name = parse_call(edit)[0]
    return (getdoc(EDITS[name]) or "").partition("\n")[0] if name in EDITS else ""


def _norms(blocks: ResidualMap) -> str:
    roles = Counter(blocks.norms.values())
    return f"norms by role: {', '.join(f'{role} {count}' for role, count in roles.items())}" if roles else "no norms"


def _table(titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '¦') for cell in line)} |" for line in lines)


def _elsewhere(model: str | None, scheme: str | None) -> str | None:
    """Return what a recipe names beyond installed libraries, schemes and edits, or None."""
    if model is not None and not _is_of_library(model):
        return f"the model {model}"
    for index, term in enumerate(split_terms(scheme or "as_written")):
        name = split_source(term)[0] + split_source(term)[1].partition("(")[0]
        if name not in (EDITS if index else schemes.SCHEMES):
            return f"{term} of the scheme {scheme}"
    return None


def _is_of_library(model: str) -> bool:
    """Whether a text names a network that a library creates without reading files or addresses named in the text."""
    source, call = split_source(model)
    if source.removesuffix(":") not in (*ZOOS, "normless"):
        return False
    if source == f"{TRANSFORMERS}:" and is_path(call):
        return False
    return not any(_reads(key, value) for key, value in _items(parse_call(call)[1]))


def _is_class_of_transformers(model: str) -> bool:
    """Whether a text names a class of transformers and a configuration, as such a network does itself."""
    source, call = split_source(model)
    return source == f"{TRANSFORMERS}:" and is_class(call)


def _items(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the values in nested arguments, each with its innermost key, without those that are only words."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from () if name in _WORDS else _items(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _items(item, key)
    else:
        yield key, value


def _reads(key: str, value: Any) -> bool:
    """Whether an argument lets a library read a file, an address or a repository: a text such as a path."""
    return isinstance(value, str) and (key in _FILES_OF_TIMM or any(mark in value for mark in "/\\:"))
