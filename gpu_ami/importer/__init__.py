"""A former pipeline's Packer template becomes a recipe, and what cannot be carried over is listed.

template          reads a template: variables, builders, provisioners and their values, and what could not be read of it
secrets           which values are never copied or shown
conversion        template → recipe, `--where` file and remarks; what the variables of well-known templates mean
hcl2              variables, locals, sources and builds of HCL2 templates, and the values of expressions
"""

from gpu_ami.importer.conversion import Imported, import_template, place_text, recipe_text

__all__ = ["Imported", "import_template", "place_text", "recipe_text"]
