"""What is kept between tasks: exemplars, prototypes, how they are filled, and every byte of it."""
