"""The census: networks of other packages, mapped and converted, and checked in what needs no stated truth."""
