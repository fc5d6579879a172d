"""What measurements say of configs that nobody has measured."""
