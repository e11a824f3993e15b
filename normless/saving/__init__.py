"""Networks saved as a folder of weights and a recipe, and loaded from it."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.saving.code_digest import modules_of as modules_of
    from normless.saving.durable import Digests as Digests
    from normless.saving.durable import digest_of as digest_of
    from normless.saving.durable import digest_of_values as digest_of_values
    from normless.saving.durable import inside as inside
    from normless.saving.durable import replaced as replaced
    from normless.saving.network import load as load
    from normless.saving.network import load_with_inputs as load_with_inputs
    from normless.saving.network import save as save
    from normless.saving.recipe import Recipe as Recipe
    from normless.saving.recipe import described as described
    from normless.saving.recipe import example_of as example_of
    from normless.saving.recipe import read_recipe as read_recipe
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
