"""Integrations with other libraries, each in a module that imports its library; names are loaded on first use."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.integrations.hub import HubNetwork as HubNetwork
    from normless.integrations.lightning import LightningRemoval as LightningRemoval
    from normless.integrations.lightning import LightningWatch as LightningWatch
    from normless.integrations.opacus import prepare as prepare
    from normless.integrations.transformers import TrainerRemoval as TrainerRemoval
    from normless.integrations.transformers import TrainerWatch as TrainerWatch
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
