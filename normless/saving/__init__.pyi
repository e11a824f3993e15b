from ._code_digest import modules_of as modules_of
from ._csv_files import write_csv as write_csv
from ._durable import (
    Digests as Digests,
    digest_of as digest_of,
    digest_of_values as digest_of_values,
    inside as inside,
    replaced as replaced,
)
from ._network import load as load
from ._recipe import read_recipe as read_recipe
