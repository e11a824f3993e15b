"""The drawing in the text of an SVG file: shapes, text and inline images, without active or external content."""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
# matplotlib writes these, and browsers show them without running or loading anything.
ELEMENT = re.compile(
    "svg|g|defs|path|use|text|tspan|rect|circle|ellipse|line|polyline|polygon|image|clipPath|pattern|"
    "linearGradient|radialGradient|stop|a"
)
ATTRIBUTE = re.compile(
    "id|version|viewBox|width|height|x|y|x1|y1|x2|y2|cx|cy|r|rx|ry|d|points|transform|style|offset|"
    "preserveAspectRatio|patternUnits|gradientUnits|gradientTransform|clipPathUnits"
)
PROPERTY = re.compile(
    "fill|fill-opacity|fill-rule|stroke|stroke-(opacity|width|linecap|linejoin|miterlimit|dasharray|dashoffset)|"
    "opacity|clip-path|clip-rule|stop-color|stop-opacity|font|font-(family|size|style|weight|stretch|variant)|"
    "text-anchor|white-space|shape-rendering|image-rendering"
)
# The one style sheet of matplotlib's files.
STYLE = "*{stroke-linejoin: round; stroke-linecap: butt}"
# A browser, unlike us, reads any depth.
DEEPEST = 100
_VALUE = re.compile(r"[^()\\<>@]*|url\(#[\w.-]+\)")
_IMAGE = re.compile(r"data:image/(png|jpeg);base64,[\w+/=\s]*")


def safe_svg(text: str) -> ElementTree.Element:
    """Return the drawing as an element without namespaces, with only the listed elements, attributes and styles.

    References are kept if they lead to an ``id`` of the drawing, images if they are PNG or JPEG within the text.

    Raises:
        ValueError: the text is not an SVG file.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"Expected the text of an SVG file, got one that is not XML: {error}.") from error
    if _name(root) != "svg":
        raise ValueError(f"Expected the text of an SVG file, got XML whose first element is {root.tag}.")
    level = [root]
    for _ in range(DEEPEST):
        for element in level:
            _clean(element)
        level = [child for element in level for child in element]
    if level:
        raise ValueError(f"Expected the text of an SVG file, got elements nested more than {DEEPEST} deep.")
    return root


def _clean(element: ElementTree.Element) -> None:
    """Remove attributes and children that are not listed from an element."""
    element.tag = _name(element)
    link = element.get(LINK, element.get("href", ""))
    values = {
        name: value for name, value in element.attrib.items() if ATTRIBUTE.fullmatch(name) or _draws(name, value)
    }
    if link.startswith("#") or (element.tag == "image" and _IMAGE.fullmatch(link)):
        values["href"] = link
    if "style" in values:
        pairs = [pair.partition(":") for pair in values["style"].split(";")]
        kept = [f"{name}:{value}" for name, _, value in pairs if _draws(name.strip(), value.strip())]
        values["style"] = ";".join(kept).strip()
    element.attrib = values
    for child in list(element):
        name = _name(child)
        if not ELEMENT.fullmatch(name) and not (name == "style" and (child.text or "").strip() == STYLE):
            element.remove(child)


def _draws(name: str, value: str) -> bool:
    """Return whether this is a listed style property with a value that refers only to the drawing."""
    return bool(PROPERTY.fullmatch(name) and _VALUE.fullmatch(value))


def _name(element: ElementTree.Element) -> str:
    """Return the name of an SVG element; empty for comments."""
    return element.tag.removeprefix(SVG) if isinstance(element.tag, str) else ""
