"""Converted networks on the Hugging Face Hub, by the mixin of huggingface_hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin, snapshot_download
from torch import nn

from normless.conversion import scheme_of
from normless.errors import RecipeError
from normless.integrations import _pretrained as pretrained
from normless.models._spec import ZOOS, Inputs
from normless.saving import load, read_recipe
from normless.saving._code_digest import code_named
from normless.saving._network import save
from normless.spec import RECIPE_FILE

_CARD = """---
{{ card_data }}
---

A residual network that was converted with normless; `recipe.json` names the network and the scheme.

```python
from normless.integrations import HubNetwork

net = HubNetwork.from_pretrained("OWNER/NAME").network
```
"""


class HubNetwork(ModelHubMixin, library_name="normless", tags=["pytorch"], model_card_template=_CARD):
    """A converted, folded or frozen network with the methods of huggingface_hub's mixin.

        HubNetwork(net, "torchvision:resnet50").push_to_hub("me/resnet50-skipinit")
        net = HubNetwork.from_pretrained("me/resnet50-skipinit").network

    `save_pretrained` and `push_to_hub` write the files of `normless.save` and a short model card. They raise a
    RecipeError for a model or scheme in a file of your own, which the Hub would not have.

    Args:
        network: as in `normless.save`.
        model: text that names the network before its conversion, as in `normless.save`. None for a network of your
            own, which `from_pretrained` is then given; networks that were created by transformers name themselves.
        example_inputs: as in `normless.save`.
    """

    def __init__(self, network: nn.Module, model: str | None = None, *, example_inputs: Inputs | None = None) -> None:
        # What the mixin would write to config.json.
        self._hub_mixin_config = None
        self.network: nn.Module = getattr(network, "_orig_mod", network)  # what torch.compile wraps
        self.model, self.example_inputs = model, example_inputs

    @classmethod
    def from_pretrained(  # That of the mixin takes arguments from a downloaded file, as if the caller had given them.
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        model: str | nn.Module | None = None,
        example_inputs: Inputs | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a network from the Hub, or from a folder, as `normless.load` does.

        Only the recipe and weights in safetensors are downloaded.

        Args:
            pretrained_model_name_or_path: the name of the repository, or a folder.
            model, example_inputs: as in `normless.load`.
            revision: a branch, tag or commit.
            options: token, cache_dir, force_download and local_files_only, as of huggingface_hub's
                `snapshot_download`.

        Raises:
            RecipeError, UntrustedCodeError: as in `normless.load`.
        """
        folder, name = Path(pretrained_model_name_or_path), str(pretrained_model_name_or_path)
        if not folder.is_dir():
            files = [RECIPE_FILE, "*.safetensors"]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=files, **options))
        text = read_recipe(folder).model if model is None else model
        return cls(load(folder, model, example_inputs=example_inputs), text if isinstance(text, str) else None)

    def _save_pretrained(self, save_directory: Path) -> None:
        texts = filter(None, (self.model, scheme_of(self.network)))
        if files := code_named(*texts, others=(*ZOOS, "normless")):
            raise RecipeError(
                f"The Hub would not have {', '.join(files)}, which the model or scheme names. Leave the model out "
                "and pass it to HubNetwork.from_pretrained(…, model=…); share a scheme of your own by normless.save, "
                "together with its file."
            )
        if self.model is None and hasattr(self.network, "save_pretrained"):
            pretrained.save_pretrained(self.network, save_directory)
        else:
            save(self.network, save_directory, self.model, example_inputs=self.example_inputs)
