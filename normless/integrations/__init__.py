"""What normless needs beside other libraries, each in a module that imports its library; names on first use."""

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
