"""The reference pages of docs/reference, made from the code: `python -m tools.reference` (`make docs`) writes them anew."""
