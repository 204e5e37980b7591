"""From the files of other products to objects: see decisions/0069."""
