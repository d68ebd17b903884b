"""One module for each transform; the module's name is the transform's id."""
