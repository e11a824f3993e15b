"""What normless needs beside other libraries, each in a module that imports its library."""

from normless.integrations.opacus import prepare as prepare
