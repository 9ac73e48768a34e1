"""From a recipe to a plan's document: facts, the recipe's grammar, its layers, and what they resolve to.

`gpu_ami.plan` is the door; nothing else outside this package needs a module of it.
"""
