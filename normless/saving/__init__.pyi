from ._code_digest import modules_of as modules_of
from ._csv_files import write_csv as write_csv
from ._durable import (
    Digests as Digests,
    digest_of as digest_of,
    digest_of_values as digest_of_values,
    inside as inside,
    replaced as replaced,
)
from ._folder import seal as seal
from ._network import load as load, load_with_inputs as load_with_inputs, save as save
from ._recipe import Recipe as Recipe, described as described, example_of as example_of, read_recipe as read_recipe
