"""A model and test sets in, scores out, each with a signature; tables, figures and a page of them."""
