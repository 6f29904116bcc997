"""`protocore audit`: what a learner's file gives away of the pictures that it learned, on a page that people read."""
