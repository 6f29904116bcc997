"""A page and a JSON API on top of a learner's file, for people and programs of the same machine."""
