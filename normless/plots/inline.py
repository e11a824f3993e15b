"""The SVG that matplotlib writes as an element of a page: own ids, the page's colours, no scripts, less text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from normless.plots.palette import css_variables

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
# Lengths are in points, of which a hundredth cannot be seen.
DECIMALS = 2
# A figure takes the width that a page gives it, up to so many times its own.
MAGNIFIED = 1.25
_POINTS = re.compile(r"([\d.]+)pt")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?![\de])")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_VARIABLES = {ink.light.lower(): f"var(--{name}, {ink.light})" for name, ink in css_variables().items()}
_GEOMETRY = {"d", "points", "x", "y", "width", "height", "cx", "cy"}


def inline_svg_text(svg: str, *, name: str, description: str) -> str:
    """The text of an SVG file as an ``<svg>`` element for a page.

    Colours of `normless.plots.palette` become style-sheet variables, the light colour as fallback, for dark pages;
    ids carry ``name``, so that two figures of one page do not collide; the ``description`` is for screen readers.
    Scripts are removed, lengths are rounded to hundredths of a point, and the figure is as wide as the page has room,
    up to `MAGNIFIED` times its own width.
    """
    root = ElementTree.fromstring(svg)
    _remove_invisible(root)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
        for attribute, value in list(element.attrib.items()):
            if attribute.lower().startswith("on") or value.strip().lower().startswith("javascript:"):
                del element.attrib[attribute]
            else:
                text = _own_ids(attribute, _rounded(attribute, value), name)
                element.set(attribute, _COLOUR.sub(lambda match: _VARIABLES.get(match[0].lower(), match[0]), text))
        # Line feeds and indentation between elements.
        if element.tag not in ("text", "tspan", "style") and not (element.text or "").strip():
            element.text = None
        if not (element.tail or "").strip():
            element.tail = None
    width = _POINTS.fullmatch(root.attrib.pop("width", ""))
    root.attrib.pop("height", None)
    if width:
        root.set("style", f"max-width: {MAGNIFIED * float(width[1]):g}pt")
    root.set("role", "img")
    root.set("aria-label", description)
    return ElementTree.tostring(root, encoding="unicode")


def _remove_invisible(root: ElementTree.Element) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            kind = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else "comment"
            if kind in ("metadata", "script", "foreignObject", "comment"):
                parent.remove(child)


def _rounded(attribute: str, value: str) -> str:
    if attribute in _GEOMETRY or (attribute == "transform" and "matrix" not in value and "scale" not in value):
        return _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.{DECIMALS}f}".rstrip("0").rstrip("."), value)
    return value


def _own_ids(attribute: str, value: str, name: str) -> str:
    if attribute == "id":
        return f"{name}-{value}"
    if attribute == "href":
        return re.sub(r"^#", f"#{name}-", value)
    return re.sub(r"url\(#", f"url(#{name}-", value)
