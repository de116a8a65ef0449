"""Small training scripts as users write them, without dlemu."""
