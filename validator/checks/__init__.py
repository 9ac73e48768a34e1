"""What an image promises, one file a role. Plain testinfra functions: the docstring is the promise."""
