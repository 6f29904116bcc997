"""Learners in the field: one file that lives for months, and the verbs that change it."""
