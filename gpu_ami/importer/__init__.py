"""A former pipeline's Packer template becomes a recipe, and what cannot be carried over is listed.

template          reads a template: variables, builders, provisioners, and what could not be read of it
interpolation     `{{user `x`}}` and `{{env `X`}}` of JSON templates
hcl2_template     variables, locals, sources and builds of HCL2 templates
hcl2_values       values of HCL2 expressions
step_values       values that a template gives to its provisioners alone
secrets           which values are never copied or shown
variable_names    what the variables of well-known templates mean
conversion        template → recipe, place and remarks
place             template → the `--where` file
leftovers         keys of a template that have no equivalent in a recipe
"""

from gpu_ami.importer.conversion import Imported, import_template, place_text, recipe_text

__all__ = ["Imported", "import_template", "place_text", "recipe_text"]
