"""Names of torch's functions, ops and layers, in families: each family is defined once, here.

`names` gives one name to all spellings of a function. `calls` holds the families of public
functions, by the names that `names.canonical` gives. `ops` holds those of the ops that the
dispatcher sees. `source` holds names as they stand in source code, those of NumPy among them. No
module of this package imports torch.
"""
