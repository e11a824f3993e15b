"""Theory of the papers: random matrix products, linear networks, homogeneous networks and their gradient bounds."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless_papers.theory.fuss_catalan import density as density
    from normless_papers.theory.fuss_catalan import density_table as density_table
    from normless_papers.theory.fuss_catalan import support_edge as support_edge
    from normless_papers.theory.graded_product import GradedProduct as GradedProduct
    from normless_papers.theory.gradient_bounds import InputGradientBounds as InputGradientBounds
    from normless_papers.theory.gradient_bounds import SetGradientBounds as SetGradientBounds
    from normless_papers.theory.gradient_descent import descent_table as descent_table
    from normless_papers.theory.linear_networks import LinearSystems as LinearSystems
    from normless_papers.theory.linear_networks import linear_systems as linear_systems
    from normless_papers.theory.matrix_factors import Entries as Entries
    from normless_papers.theory.matrix_factors import condition_growth as condition_growth
    from normless_papers.theory.matrix_factors import lyapunov_exponents as lyapunov_exponents
    from normless_papers.theory.matrix_factors import random_factors as random_factors
    from normless_papers.theory.parameter_sets import ParameterSet as ParameterSet
    from normless_papers.theory.parameter_sets import candidate_sets as candidate_sets
    from normless_papers.theory.parameter_sets import homogeneous_sets as homogeneous_sets
    from normless_papers.theory.parameter_sets import input_homogeneity as input_homogeneity
    from normless_papers.theory.singular_values import conditioning_table as conditioning_table
    from normless_papers.theory.singular_values import distance_between as distance_between
    from normless_papers.theory.singular_values import distance_to_law as distance_to_law
    from normless_papers.theory.singular_values import extremes_table as extremes_table
    from normless_papers.theory.singular_values import singular_value_table as singular_value_table
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
