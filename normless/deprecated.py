"""Public names that moved; the former ones work with a ``DeprecationWarning``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

# Names by the package that had them, and by the one that has them now.
_MOVED = {
    "normless.optim": {
        "normless.train": """
            r a t e _ m u l t i p l i e r   s e t _ r a t e   s t e p
        """,
    },
    "normless.probes": {
        "normless_papers.probes": """
                                      A c t i v a t i o n H i s t o g r a m s   C h a n n e l C o n t r i
            b u t i o n s   C h a n n e l G r a d i e n t s   C h a n n e l P a i r s   D e s c e n t   D
            i v e r g i n g U p d a t e                           E x a m p l e C o v a r i a n c e   G r
            a d i e n t C o r r e l a t i o n   G r a d i e n t S u m s   L o g i t G r a d i e n t M a t
            r i x   M a k e O p t i m i z e r   N O _ O W N E R                           N e t w o r k F
            u n c t i o n   O u t p u t G r a d i e n t H i s t o g r a m s   P a r a m e t e r G r a d i
            e n t H i s t o g r a m s   P a r a m e t e r G r a d i e n t s                           P a
            r a m e t e r O w n e r   S t a b l e R a t e   S t e p E r r o r s   S t r e a m V a r i a n
            c e   S u m m a n d D i s t r i b u t i o n   W a r m S t a r t   W e i g h t D y n a m i c s
            a c t i v a t i o n _ h i s t o g r a m s   a s _ f u n c t i o n   c h a n n e l _ g r a d i
            e n t _ s p r e a d   c l a s s w i s e _ e l e m e n t s   c l a s s w i s e _ g r a d i e n
            t s                           d o m i n a n c e _ t a b l e   e f f e c t i v e _ r a n k   f
            i n d _ d i v e r g e n c e   f o r _ e a c h _ c l a s s   f u n c t i o n _ u p d a t e _ t
            a b l e                           g a m m a _ i n v a r i a n c e   g a m m a _ s l o p e s
            g a m m a _ u p d a t e s   g r a d i e n t _ a l i g n m e n t _ t a b l e   g r a d i e n t
            _ c o r r e l a t i o n _ t a b l e                           g r a d i e n t _ h i s t o g r
            a m s   g r a d i e n t _ s u m _ t a b l e   j a c o b i a n _ s p e c t r u m   l 2 _ s h a
            r e   l a r g e s t _ s t a b l e _ r a t e                           l a s t _ s t e m _ l a
            y e r   l o s s _ a l o n g   l o s s _ t e r m s   m o m e n t s _ a l o n g   m o m e n t u
            m _ s g d   n o i s e _ p e r _ e x a m p l e   o b s e r v e _ a l o n g
            p a r a m e t e r _ g r a d i e n t _ c o r r e l a t i o n   p a r a m e t e r _ o w n e r s
            p e a k _ c o u n t s   p e r _ e x a m p l e _ g r a d i e n t s                           p
            r e d i c t e d _ g r a d i e n t _ c o s i n e s   r a n k _ o n e _ s h a r e   r e q u i r
            e _ k n o w n   s c a l a r _ b r a n c h _ t a b l e   s g d _ n o i s e _ t a b l e
            s t e e p e s t _ d e s c e n t   s t e p _ e r r o r s   s u m m a n d _ s t a t i s t i c s
            t r a i n a b l e _ p a r a m e t e r s   t r a i n e d _ c o p y   u p d a t e _ s l o p e s
            u p d a t e _ t e r m s   u p d a t e _ t r a c e _ t a b l e
        """,
        "normless_papers.theory": """
                                      G r a d e d P r o d u c t   I n p u t G r a d i e n t B o u n d s
            L i n e a r S y s t e m s   P a r a m e t e r S e t   S e t G r a d i e n t B o u n d s   c a
            n d i d a t e _ s e t s                           c o n d i t i o n _ g r o w t h   c o n d i
            t i o n i n g _ t a b l e   d e n s i t y _ t a b l e   d e s c e n t _ t a b l e   d i s t a
            n c e _ b e t w e e n   d i s t a n c e _ t o _ l a w                           e x t r e m e
            s _ t a b l e   h o m o g e n e o u s _ s e t s   i n p u t _ b o u n d _ t a b l e   i n p u
            t _ h o m o g e n e i t y   l i n e a r _ s y s t e m s                           l y a p u n
            o v _ e x p o n e n t s   p r o d u c t _ l o g _ s i n g u l a r _ v a l u e s   r a n d o m
            _ f a c t o r s   s e t _ b o u n d _ t a b l e   s e t s _ o f                           s i
            n g u l a r _ v a l u e _ t a b l e   s u p p o r t _ e d g e
        """,
    },
}


# Former functions that measured one watcher's table: the watcher, and the arguments by position after the model.
_TABLES = {
    "normless_papers.probes.activation_histograms": ("ActivationHistograms", "inputs layers channels"),
    "normless_papers.probes.gradient_histograms": ("ParameterGradientHistograms", "inputs targets parameters"),
    "normless_papers.probes.gradient_sum_table": ("GradientSums", "inputs targets layers"),
    "normless_papers.theory.input_bound_table": ("InputGradientBounds", "inputs targets residual_map"),
    "normless_papers.theory.set_bound_table": ("SetGradientBounds", "inputs targets residual_map"),
}
_RENAMED = {
    "normless.UnsupportedEdit": "normless.errors.UnsupportedEditError",
    "normless.errors.UnsupportedEdit": "normless.errors.UnsupportedEditError",
}


def with_moved(package: str, current: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package or module, `current` if it has one, with the names that moved elsewhere."""
    homes = {
        f"{package}.{name}": f"{home}.{name}"
        for home, names in _MOVED.get(package, {}).items()
        for name in names.split()
    } | _RENAMED

    def find(name: str) -> Any:
        former = f"{package}.{name}"
        if former in homes:
            message = f"{former} moved to {homes[former]}; import it from there."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            home, _, current_name = homes[former].rpartition(".")
            return getattr(import_module(home), current_name)
        if current is not None and former in _TABLES:
            watcher, positional = _TABLES[former]
            message = f"{former} is replaced by normless.probe(model, (inputs, targets), [{watcher}(…)])."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return _table_of(current(watcher), positional.split())
        if current is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return current(name)

    return find


def _table_of(watcher: Callable[..., Any], positional: list[str]) -> Callable[..., Any]:
    """A function of a model and a batch that returns the table of one watcher."""

    def table(model: Any, *values: Any, **options: Any) -> Any:
        given = dict(zip(positional, values, strict=False)) | options
        shared = {name: given.pop(name) for name in ("loss", "residual_map", "training") if name in given}
        inputs, targets = given.pop("inputs"), given.pop("targets", None)
        made = watcher(**given)
        import_module("normless.probes").observe(model, [made], inputs, targets, **shared)
        return made.table()

    return table
